//! The settings of `terrace`: each piece has its switch, so that it can be shown to be needed.
//!
//! In: settings as people write them. Out: an [`Options`]. Must not: decide.

use std::time::Duration;

use terrace_core::policy::Needs;
use terrace_core::units::{parse_duration, parse_share};

use super::state::Parts;
use crate::parts::inside;
use crate::{SettingInfo, Settings, SettingsError};

/// The settings, for the registry.
pub(super) const SETTINGS: &[SettingInfo] = &[
    SettingInfo {
        key: "signals",
        default: "auto",
        meaning: "what it lives on: samples, accessed-bits, or hint-faults; auto takes the first of them that there is",
    },
    SettingInfo { key: "stores", default: "on", meaning: "whether sampled stores count, as far as they reach memory" },
    SettingInfo { key: "value", default: "table", meaning: "table, or steady: the long mean, nothing learned" },
    SettingInfo { key: "state", default: "age", meaning: "age, or level: without the time since the last use" },
    SettingInfo { key: "trend", default: "on", meaning: "whether rising and falling use are told apart" },
    SettingInfo { key: "table", default: "smooth", meaning: "smooth, or raw: without interpolation and prior" },
    SettingInfo {
        key: "doubt",
        default: "3",
        meaning: "standard errors by which a page that comes is valued lower, and one that leaves higher",
    },
    SettingInfo {
        key: "price",
        default: "on",
        meaning: "the share of its price that a move has to repay, such as 5%; off: whatever is worth more moves, whatever it costs",
    },
    SettingInfo {
        key: "spare",
        default: "on",
        meaning: "whether a mover that runs on an idle processor costs only its interrupts; off: its time is always somebody's",
    },
    SettingInfo {
        key: "bandwidth",
        default: "on",
        meaning: "whether a copy costs the program the bandwidth that it takes from it",
    },
    SettingInfo { key: "movers", default: "4", meaning: "threads that move pages where it places them, 1 to 64" },
    SettingInfo { key: "allocations", default: "on", meaning: "whether room is made for new pages before they come" },
    SettingInfo {
        key: "between",
        default: "on",
        meaning: "whether a slow page that is seen between two passes is valued at once; off: by the next pass",
    },
    SettingInfo { key: "loaded", default: "on", meaning: "whether latencies count as loaded, not as idle" },
    SettingInfo {
        key: "interval",
        default: "auto",
        meaning: "auto: until an eighth of an observation a page is in, 100 ms to 10 s; or a time such as 1s",
    },
    SettingInfo {
        key: "period",
        default: "auto",
        meaning: "accesses from one sample to the next; auto: as few as cpu affords, 512 at least",
    },
    SettingInfo { key: "cpu", default: "3%", meaning: "share of a processor that watching may take" },
    inside::SETTING,
];

/// What a policy of this name was asked to be.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub signals: Option<Signal>,
    pub stores: bool,
    pub learns: bool,
    pub parts: Parts,
    pub doubt: f32,
    /// The share of its price that a move has to repay.
    pub price: f64,
    pub spare: bool,
    pub bandwidth: bool,
    pub movers: u8,
    pub allocations: bool,
    pub between: bool,
    pub loaded: bool,
    pub interval: Option<Duration>,
    pub period: Option<u32>,
    pub cpu: f64,
}

/// What a tracker can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// Hardware samples.
    Samples,
    /// Walks of accessed bits.
    AccessedBits,
    /// Hint faults.
    HintFaults,
}

impl Signal {
    /// All, best first.
    pub(super) const ALL: [Signal; 3] = [Signal::Samples, Signal::AccessedBits, Signal::HintFaults];

    /// What a driver must serve for it. Allocations are told as well as the driver can.
    pub(super) fn needs(self) -> Needs {
        let life_cycle = Needs { life_cycle: true, ..Needs::default() };
        match self {
            Signal::Samples => Needs { samples: true, ..life_cycle },
            Signal::AccessedBits => Needs { scans: true, ..life_cycle },
            Signal::HintFaults => Needs { hint_faults: true, ..life_cycle },
        }
    }
}

impl Options {
    /// Reads the settings.
    pub(super) fn new(settings: &mut Settings) -> Result<Options, SettingsError> {
        let signals = [
            ("auto", None),
            ("samples", Some(Signal::Samples)),
            ("accessed-bits", Some(Signal::AccessedBits)),
            ("hint-faults", Some(Signal::HintFaults)),
        ];
        let wanted = "auto or a duration of 10ms or more, such as 1s";
        Ok(Options {
            signals: settings.choice("signals", &signals)?,
            stores: settings.switch("stores")?,
            learns: settings.choice("value", &[("table", true), ("steady", false)])?,
            parts: Parts {
                age: settings.choice("state", &[("age", true), ("level", false)])?,
                trend: settings.switch("trend")?,
                smooth: settings.choice("table", &[("smooth", true), ("raw", false)])?,
            },
            doubt: settings.take("doubt", "a number from 0 to 10", |text| {
                text.parse().ok().filter(|number| (0.0..=10.0).contains(number))
            })?,
            price: settings.take("price", "on, off or a share between 0% and 100%", |text| match text {
                "on" => Some(1.0),
                "off" => Some(0.0),
                text => parse_share(text).ok(),
            })?,
            spare: settings.switch("spare")?,
            bandwidth: settings.switch("bandwidth")?,
            movers: settings.take("movers", "a number from 1 to 64", |text| {
                text.parse().ok().filter(|number| (1..=64).contains(number))
            })?,
            allocations: settings.switch("allocations")?,
            between: settings.switch("between")?,
            loaded: settings.switch("loaded")?,
            interval: settings.take("interval", wanted, |text| match text {
                "auto" => Some(None),
                text => parse_duration(text).ok().filter(|span| *span >= Duration::from_millis(10)).map(Some),
            })?,
            period: settings.take("period", "auto or a number from 16 to 1048576", |text| match text {
                "auto" => Some(None),
                text => text.parse().ok().filter(|number| (16..=1 << 20).contains(number)).map(Some),
            })?,
            cpu: settings.share("cpu")?.max(0.0001),
        })
    }
}
