//! The tuner of fast memory at run time, as the service, `terrace size tune` and the simulator use it.
//!
//! Entry: [`tuner`].
//! In: windows of a program (how much fast memory it held, what it lost), and what a performance database predicts where one is asked.
//! Out: the share of its memory that should be fast from now on, and an account of the decisions.
//! Must not: do I/O, read a clock, know a modelled machine, or ask a database by itself: the owner of one implements [`Predictor`].
//!
//! [`inputs`] are the types that go in and out, [`tuner`] decides, [`curve`] is a loss at every size, [`trial`] measures by randomised windows. What fills the windows lies elsewhere:
//! `terrace_linux::live_tuner` on a running kernel, `terrace_sizing::sim_driver` in the simulator.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod curve;
pub mod inputs;
pub mod trial;
pub mod tuner;

pub use curve::Curve;
pub use inputs::{
    Action, Coverage, Interval, LEAST_COVERAGE, LiveWindow, Loss, MARGIN, Mode, NotSteady, Prediction, Predictor,
    Summary, TunerConfig, Window, leaves_room, percentile_95, steady_saving,
};
pub use trial::{Arm, Gain, Trial, TrialConfig};
pub use tuner::Tuner;
