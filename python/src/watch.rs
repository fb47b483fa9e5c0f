//! Runs work of minutes beside the interpreter: the GIL is released, Ctrl-C stops it, and what a policy in Python raises comes out.
//!
//! In: a job. Out: its result as Python has it. Must not: lose an exception.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use terrace_study::{Error, Progress};

/// Time between two looks at signals.
const LOOK: Duration = Duration::from_millis(50);

/// How far a job is, and whether it should stop.
#[derive(Default)]
pub(crate) struct Watch {
    stop: AtomicBool,
    done: AtomicUsize,
    total: AtomicUsize,
}

impl Progress for Watch {
    fn begin(&self, total: usize, done: usize) {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }
    fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// An error as Python has it: what was asked for and makes no sense is a `ValueError`, a file's is an `OSError`.
pub(crate) fn raised(error: &Error) -> PyErr {
    let text = causes(error);
    match error {
        _ if error.is_misuse() => PyValueError::new_err(text),
        Error::File { .. } => PyOSError::new_err(text),
        Error::Stopped => PyKeyboardInterrupt::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// An error with what caused it, as the command prints it.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = text + ": " + &more;
        }
        cause = error.source();
    }
    text
}

/// Raises an exception of a policy through the simulation, which has no way to fail in a policy; [`work`] catches it.
pub(crate) fn raise_through(error: PyErr) -> ! {
    resume_unwind(Box::new(error))
}

/// The exception that came through, if it is one.
fn came_through(payload: Box<dyn Any + Send>) -> PyErr {
    match payload.downcast::<PyErr>() {
        Ok(error) => *error,
        Err(other) => resume_unwind(other),
    }
}

/// Does a job of simulations without the GIL.
///
/// # Errors
/// What the job found, and as [`beside`].
pub(crate) fn work<T: Send>(
    py: Python<'_>,
    told: Option<&Py<PyAny>>,
    job: impl FnOnce(&Watch) -> Result<T, Error> + Send,
) -> PyResult<T> {
    beside(py, told, job)?.map_err(|error| raised(&error))
}

/// Does a job without the GIL. `told` is called now and then, and at the end, with runs done and runs there are.
///
/// # Errors
/// What a policy or `told` raised, or `KeyboardInterrupt`.
pub(crate) fn beside<T: Send>(
    py: Python<'_>,
    told: Option<&Py<PyAny>>,
    job: impl FnOnce(&Watch) -> T + Send,
) -> PyResult<T> {
    let watch = Watch::default();
    py.detach(|| {
        std::thread::scope(|scope| {
            let (tell, hear) = channel();
            let watch = &watch;
            scope.spawn(move || {
                let done = catch_unwind(AssertUnwindSafe(|| job(watch)));
                // The other side waits for it, whatever happens.
                tell.send(done).ok();
            });
            let mut interrupted = None;
            let done = loop {
                match hear.recv_timeout(LOOK) {
                    Ok(done) => break done,
                    Err(RecvTimeoutError::Timeout) if interrupted.is_none() => {
                        if let Err(error) = Python::attach(|py| look(py, told, watch)) {
                            interrupted = Some(error);
                            watch.stop.store(true, Ordering::Relaxed);
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(PyRuntimeError::new_err("the simulation ended without a result"));
                    }
                }
            };
            if let Some(error) = interrupted {
                return Err(error);
            }
            let found = done.map_err(came_through)?;
            Python::attach(|py| look(py, told, watch))?;
            Ok(found)
        })
    })
}

fn look(py: Python<'_>, told: Option<&Py<PyAny>>, watch: &Watch) -> PyResult<()> {
    py.check_signals()?;
    if let Some(told) = told {
        told.call1(py, (watch.done.load(Ordering::Relaxed), watch.total.load(Ordering::Relaxed)))?;
    }
    Ok(())
}
