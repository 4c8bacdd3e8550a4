//! The pages of benchmarks and of scaling out against the data: tables and plot are what the data that is checked in gives.

#[path = "../../bench/src/checker.rs"]
mod checker;
#[path = "../../bench/src/report/mod.rs"]
mod report;

#[test]
fn the_tables_and_the_plot_of_the_benchmarks_are_made_of_the_data_beside_them() {
    let data = include_str!("../../docs/benchmarks.json");
    let run = serde_json::from_str(data).unwrap();

    let tables = report::tables(&run);
    let scale = report::scale(&run);
    let plot = report::plot(&run);

    let remade = "run scripts/bench page";
    assert!(!tables.is_empty());
    assert!(
        include_str!("../../docs/benchmarks.md").contains(&tables),
        "{remade}"
    );
    assert!(!scale.is_empty());
    assert!(
        include_str!("../../docs/scaling-out.md").contains(&scale),
        "{remade}"
    );
    assert!(
        include_str!("../../docs/benchmarks.svg") == plot,
        "{remade}"
    );
}
