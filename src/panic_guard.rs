//! A panic ends the process (I10), but for one place: while the store is being opened, sled panics on some damage, and
//! that must become an error with a way out.
//!
//! The guard counts for the thread that holds it and, because sled panics in threads of its own as well, for those. A panic
//! of any other thread meanwhile, such as one that answers probes, is a fault of this program and no damage of the store.

use std::any::Any;
use std::cell::Cell;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How sled names its threads.
const SLED_THREADS: &str = "sled-";

/// How many calls of [`catch_panics`] are running.
static GUARDS: AtomicU32 = AtomicU32::new(0);
/// What the last panic under a guard said, of whichever thread.
static CAUGHT: Mutex<Option<String>> = Mutex::new(None);

thread_local! {
    /// How many of them run on this thread.
    static HELD_HERE: Cell<u32> = const { Cell::new(0) };
}

/// Makes every panic outside [`catch_panics`], of whichever thread, end the process: one line, exit code 1.
pub(crate) fn install() {
    std::panic::set_hook(Box::new(|info| {
        let text = describe(info);
        if is_guarded() {
            *caught() = Some(text);
            return;
        }
        end_process(&text);
    }));
}

/// Whether a guard counts for this thread.
fn is_guarded() -> bool {
    let current = std::thread::current();
    let is_sleds = || {
        current
            .name()
            .is_some_and(|name| name.starts_with(SLED_THREADS))
    };
    0 < HELD_HERE.get() || (0 < GUARDS.load(Ordering::SeqCst) && is_sleds())
}

/// Runs `work`; a panic meanwhile, in this thread or (where the hook is installed) in one of sled's, is an error.
///
/// # Errors
/// [`Panicked`] with what the panic said. `work` may have succeeded nevertheless, with a thread of it dead: its
/// result is dropped.
pub(crate) fn catch_panics<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let guard = Guard::take();
    // What `work` leaves half done is dropped with it: it is never looked at again.
    let result = catch_unwind(AssertUnwindSafe(work));
    drop(guard);
    let said = caught().take();
    match (result, said) {
        (Ok(value), None) => Ok(value),
        (Ok(_), Some(text)) => Err(Panicked { text }),
        (Err(payload), said) => Err(Panicked {
            text: said.unwrap_or_else(|| message(payload.as_ref())),
        }),
    }
}

/// Something panicked under the guard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Panicked {
    text: String,
}

struct Guard;

impl Guard {
    fn take() -> Self {
        GUARDS.fetch_add(1, Ordering::SeqCst);
        HELD_HERE.set(HELD_HERE.get() + 1);
        Self
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        HELD_HERE.set(HELD_HERE.get() - 1);
        GUARDS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn caught() -> MutexGuard<'static, Option<String>> {
    CAUGHT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let text = message(info.payload());
    match info.location() {
        Some(location) => format!("{text} (at {}:{})", location.file(), location.line()),
        None => text,
    }
}

/// The panic's message on one line.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[expect(
    clippy::exit,
    reason = "a node with a dead thread must not go on, and unwinding ends only the thread"
)]
fn end_process(text: &str) {
    let line = format!("highwater: internal error, the process ends: {text}; please report this\n");
    // Where stderr is gone there is nobody left to tell.
    drop(std::io::stderr().write_all(line.as_bytes()));
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};
    use std::thread;

    use super::*;

    #[test]
    fn a_panic_under_the_guard_is_an_error_and_the_rest_a_value() {
        // The hook is not installed in tests, where it would end them all: the payload is what remains.
        let panicked = catch_panics(|| panic!("page 7\n is damaged")).unwrap_err();

        assert_eq!(panicked.to_string(), "page 7 is damaged");
        assert_eq!(catch_panics(|| 7), Ok(7));
    }

    const CHILD: &str = "HIGHWATER_TEST_PANIC";

    /// Runs the test of this name in a process of its own, where the hook may end it.
    fn child(test: &str) -> Output {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                &format!("panic_guard::tests::{test}"),
                "--nocapture",
            ])
            .env(CHILD, "1")
            .output()
            .unwrap()
    }

    fn is_child() -> bool {
        std::env::var_os(CHILD).is_some()
    }

    #[test]
    fn a_panic_of_any_thread_ends_the_process_with_one_line_and_exit_1() {
        if is_child() {
            install();
            drop(thread::spawn(|| panic!("the\nqueue is gone")).join());
            return;
        }

        let output = child("a_panic_of_any_thread_ends_the_process_with_one_line_and_exit_1");

        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with(
            "highwater: internal error, the process ends: the queue is gone (at src/panic_guard.rs:"
        ));
    }

    /// A panic of a thread with this name while the guard is held, and what the guard makes of it.
    fn panic_elsewhere(name: &str) -> Result<u32, Panicked> {
        catch_panics(|| {
            let other = thread::Builder::new().name(name.to_owned());
            let other = other.spawn(|| panic!("page 7 is damaged")).unwrap();
            drop(other.join());
            7
        })
    }

    #[test]
    fn a_panic_of_a_thread_of_sleds_under_the_guard_is_an_error_and_the_process_goes_on() {
        if is_child() {
            install();
            let panicked = panic_elsewhere("sled-io-3").unwrap_err().to_string();
            assert!(panicked.starts_with("page 7 is damaged (at src/panic_guard.rs:"));
            assert_eq!(catch_panics(|| 7), Ok(7));
            drop(std::io::stdout().write_all(b"went on\n"));
            return;
        }

        let output = child(
            "a_panic_of_a_thread_of_sleds_under_the_guard_is_an_error_and_the_process_goes_on",
        );

        assert_eq!(output.status.code(), Some(0));
        assert!(
            String::from_utf8(output.stdout)
                .unwrap()
                .contains("went on")
        );
        assert_eq!(output.stderr, b"");
    }

    #[test]
    fn a_panic_of_a_thread_that_serves_meanwhile_is_no_damage_and_ends_the_process() {
        if is_child() {
            install();
            drop(panic_elsewhere("tokio-rt-worker"));
            drop(std::io::stdout().write_all(b"went on\n"));
            return;
        }

        let output =
            child("a_panic_of_a_thread_that_serves_meanwhile_is_no_damage_and_ends_the_process");

        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.starts_with("highwater: internal error, the process ends: page 7 is damaged"),
            "{said}"
        );
        assert!(
            !String::from_utf8(output.stdout)
                .unwrap()
                .contains("went on")
        );
    }
}
