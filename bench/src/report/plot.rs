//! The plot: grants per second by concurrency, both logarithmic.

use std::fmt::Write as _;

use super::data::{Run, Subject, Work};

/// All sizes are in the plot's own units, which a reader scales.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 80.0;
/// The names of the lines stand there.
const RIGHT: f64 = 330.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Between the names of two lines.
const NAME_DISTANCE: f64 = 17.0;

/// Told apart by those who see few colours as well; the first is Highwater's.
const COLOURS: [&str; 12] = [
    "#d55e00", "#e8a06a", "#8c3c00", "#0072b2", "#009e73", "#70c9ac", "#cc79a7", "#56b4e9",
    "#7da7c4", "#b8960c", "#8a8a3c", "#555555",
];

/// One subject's medians, by rising concurrency.
struct Line {
    subject: Subject,
    colour: &'static str,
    points: Vec<(f64, f64)>,
}

/// The whole file; nothing where nothing was measured.
pub(crate) fn plot(run: &Run) -> String {
    let lines = lines(run);
    let points = || lines.iter().flat_map(|line| &line.points);
    let columns: Vec<f64> = sorted(points().map(|(workers, _)| *workers));
    let rates: Vec<f64> = sorted(points().map(|(_, rate)| *rate));
    let ([first, .., last], [least, .., greatest]) = (&columns[..], &rates[..]) else {
        return String::new();
    };
    let axes = Axes {
        workers: (first.log2(), last.log2()),
        rates: (least.log10().floor(), greatest.log10().ceil()),
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    let title = format!(
        "Grants per second, median of {} rounds, {} cores, {}",
        run.about.rounds, run.about.cores, run.about.date
    );
    text(&mut svg, (LEFT, 28.0), "font-size=\"16\"", &title);
    grid(&mut svg, &axes, &columns);
    for line in &lines {
        draw(&mut svg, &axes, line);
    }
    names(&mut svg, &axes, &lines);
    svg.push_str("</svg>\n");
    svg
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// What the axes span, as logarithms.
struct Axes {
    workers: (f64, f64),
    rates: (f64, f64),
}

impl Axes {
    fn x(&self, workers: f64) -> f64 {
        let (first, last) = self.workers;
        LEFT + (workers.log2() - first) / (last - first) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, rate: f64) -> f64 {
        let (least, greatest) = self.rates;
        let above = (rate.log10() - least) / (greatest - least);
        HEIGHT - BOTTOM - above * (HEIGHT - TOP - BOTTOM)
    }
}

fn lines(run: &Run) -> Vec<Line> {
    let mut lines = Vec::new();
    for (subject, colour) in Subject::ALL.into_iter().zip(COLOURS) {
        let mut workers: Vec<usize> = run
            .all_loads()
            .filter(|load| load.work == Work::plain(subject, load.work.workers))
            .map(|load| load.work.workers)
            .collect();
        workers.sort_unstable();
        workers.dedup();
        let point = |workers: usize| {
            let rate = run.spread(Work::plain(subject, workers), |load| load.grants_per_second);
            let column = f64::from(u32::try_from(workers).ok()?);
            // There is no logarithm of none at all.
            let rate = rate.map(|rate| rate.median).filter(|rate| 1.0 <= *rate)?;
            Some((column, rate))
        };
        let points: Vec<_> = workers.into_iter().filter_map(point).collect();
        // One point is no line.
        if 1 < points.len() {
            lines.push(Line {
                subject,
                colour,
                points,
            });
        }
    }
    lines
}

fn grid(svg: &mut String, axes: &Axes, columns: &[f64]) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let decades = (0..10).map(|decade| 10_u32.pow(decade));
    let (least, greatest) = axes.rates;
    for rate in decades.filter(|rate| (least..=greatest).contains(&f64::from(*rate).log10())) {
        let y = axes.y(rate.into());
        stroke(svg, [(LEFT, y), (right, y)], "#dddddd", 1);
        let label = super::figures::count(rate.into());
        text(svg, (LEFT - 8.0, y + 4.0), "text-anchor=\"end\"", &label);
    }
    for column in columns {
        let x = axes.x(*column);
        stroke(svg, [(x, TOP), (x, bottom)], "#eeeeee", 1);
        let label = format!("{column}");
        text(svg, (x, bottom + 20.0), "text-anchor=\"middle\"", &label);
    }
    let middle = f64::midpoint(LEFT, right);
    let label = "workers, each with one request on its way";
    text(
        svg,
        (middle, bottom + 44.0),
        "text-anchor=\"middle\"",
        label,
    );
}

/// How strongly a line is drawn.
fn width(subject: Subject) -> u32 {
    match subject {
        Subject::Highwater => 4,
        _ => 2,
    }
}

fn draw(svg: &mut String, axes: &Axes, line: &Line) {
    let places = line
        .points
        .iter()
        .map(|(workers, rate)| (axes.x(*workers), axes.y(*rate)));
    stroke(svg, places.clone(), line.colour, width(line.subject));
    for (x, y) in places {
        let colour = line.colour;
        let _infallible = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"
        );
    }
}

/// Beside the end of each line its name, moved so that no two stand on each other.
fn names(svg: &mut String, axes: &Axes, lines: &[Line]) {
    let end = |line: &Line| line.points.last().map(|(_, rate)| axes.y(*rate));
    let mut ends: Vec<(f64, &Line)> = lines
        .iter()
        .filter_map(|line| Some((end(line)?, line)))
        .collect();
    ends.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let x = WIDTH - RIGHT + 12.0;
    let mut free = TOP;
    for (y, line) in ends {
        let y = y.max(free);
        free = y + NAME_DISTANCE;
        let style = format!("fill=\"{}\"", line.colour);
        text(svg, (x, y + 4.0), &style, line.subject.title());
    }
}

fn stroke(
    svg: &mut String,
    places: impl IntoIterator<Item = (f64, f64)>,
    colour: &str,
    width: u32,
) {
    let places: Vec<String> = places
        .into_iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _infallible = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        places.join(" ")
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), style: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _infallible = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{text}</text>");
}
