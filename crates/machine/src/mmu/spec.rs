//! What the MMU is asked to be: where its tables lie, what is counted, when, and what an update costs.
//!
//! In: texts such as `l1-miss`, `random:64`, `16`. Out: checked values, or an error that names what was expected. Must not:
//! default anything silently: every field is printed with the results.
//!
//! | constant | value | source |
//! |---|---|---|
//! | page size | 4 KiB, 2 MiB, 1 GiB | Intel SDM volume 3, 4-level paging |
//! | layout | full: VA\[29:12\]; literal: VA\[20:12\] | hotness walk, section 3.1 and figure 1; "full" is what the text must mean, as one PMD table covers 1 GiB |
//! | width | 16 bits | not in the paper; 8 and 64 are offered beside it |
//! | when | every first-level TLB miss | hotness walk, section 5.4: the policy it costs |
//! | update | 100 cycles | hotness walk, section 5.4: all of synchronisation |
//! | paging-structure caches | 32 PDE, 4 PDPTE, 2 PML4E entries | Intel SDM volume 3, section 4.10.3 has the three; sizes are an assumption of the order that published reverse engineering found |
//! | walks of a core under way at a time | 2 (`page_walkers` of the machine) | Intel optimization manual, Skylake microarchitecture |
//! | 1 GiB entries | 4 first level, 16 second level | Intel optimization manual, Skylake Server core, TLB table |

use std::str::FromStr;

use terrace_core::units::TierId;

use crate::preset::TlbSpec;
use crate::scale::Scale;

/// How large a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// 4 KiB, a leaf of the last level.
    Small,
    /// 2 MiB, a leaf of the PMD.
    Huge,
    /// 1 GiB, a leaf of the PDPT.
    Giant,
}

impl Size {
    /// Pages of 4 KiB it covers.
    pub const fn pages(self) -> u32 {
        match self {
            Size::Small => 1,
            Size::Huge => 1 << 9,
            Size::Giant => 1 << 18,
        }
    }
}

/// Which bits of an address choose its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// VA\[29:12\]: a counter for each 4 KiB behind a PMD table, 262,144 of them.
    Full,
    /// VA\[20:12\], as the paper's text and figure have it: 512 counters, shared by all huge pages of a PMD table.
    Literal,
}

/// Bytes of a counter; it stays at its largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Width {
    /// 8 bits.
    W8,
    /// 16 bits.
    W16,
    /// 64 bits.
    W64,
}

impl Width {
    /// Bytes of a counter.
    pub const fn bytes(self) -> u64 {
        match self {
            Width::W8 => 1,
            Width::W16 => 2,
            Width::W64 => 8,
        }
    }

    /// The value at which it stays.
    pub const fn most(self) -> u64 {
        match self {
            Width::W8 => u8::MAX as u64,
            Width::W16 => u16::MAX as u64,
            Width::W64 => u64::MAX,
        }
    }
}

/// Which accesses to 2 MiB pages are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Those that miss the first-level TLB.
    FirstMiss,
    /// Those that miss both levels.
    SecondMiss,
    /// Each with a probability of one in this many.
    Random(u32),
    /// Every so-many-th of a core.
    Nth(u32),
    /// All.
    Every,
}

/// What keeps two cores from losing each other's increments, and what it costs the core that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sync {
    /// Nothing: updates are posted and cost traffic only.
    Nothing,
    /// This many cycles per update, the paper's whole model.
    Cycles(u32),
    /// The line must come to the core that updates it, and updates of one line wait for each other.
    Coherent,
}

/// Where page tables and counters lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TablePlacement {
    /// In the fastest tier.
    Fast,
    /// In the slowest tier that loads and stores reach.
    Slow,
    /// In the tier of the first page that is mapped behind them, as a kernel that allocates locally does.
    WithData,
}

/// What the MMU is asked to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MmuSpec {
    /// The TLBs of a core, with their costs.
    pub tlb: TlbSpec,
    /// By how much they are shrunk.
    pub scale: Scale,
    /// Cores.
    pub cores: usize,
    /// Cycles a second.
    pub frequency_hertz: f64,
    /// Where tables and counters lie.
    pub placement: TablePlacement,
    /// The slowest tier that loads and stores reach.
    pub slow: TierId,
    /// Cycles added to every translation that the first level misses, whatever the size of the page: the simplified model of
    /// hotness walk, section 5.4, whose figure is of 4 KiB pages.
    pub miss_cycles: u32,
    /// The counters, if there are any.
    pub counters: Option<CounterSpec>,
}

/// What is counted, where, and at which cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CounterSpec {
    /// Which bits choose a counter.
    pub layout: Layout,
    /// How wide it is.
    pub width: Width,
    /// What is counted.
    pub when: When,
    /// What an update costs.
    pub sync: Sync,
}

impl Default for CounterSpec {
    /// The usable layout, 16 bits, and the one policy and cost that the paper states.
    fn default() -> CounterSpec {
        CounterSpec { layout: Layout::Full, width: Width::W16, when: When::FirstMiss, sync: Sync::Cycles(100) }
    }
}

/// A text that names none of the choices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: expected {wanted}")]
pub struct NotOffered {
    /// The text.
    pub text: String,
    /// What was expected.
    pub wanted: &'static str,
}

fn refuse<T>(text: &str, wanted: &'static str) -> Result<T, NotOffered> {
    Err(NotOffered { text: text.to_owned(), wanted })
}

impl FromStr for Layout {
    type Err = NotOffered;
    fn from_str(text: &str) -> Result<Layout, NotOffered> {
        match text {
            "full" => Ok(Layout::Full),
            "literal" => Ok(Layout::Literal),
            _ => refuse(text, "a layout: full or literal"),
        }
    }
}

impl FromStr for Width {
    type Err = NotOffered;
    fn from_str(text: &str) -> Result<Width, NotOffered> {
        match text {
            "8" => Ok(Width::W8),
            "16" => Ok(Width::W16),
            "64" => Ok(Width::W64),
            _ => refuse(text, "a width that is offered: 8, 16 or 64 bits"),
        }
    }
}

impl FromStr for When {
    type Err = NotOffered;
    fn from_str(text: &str) -> Result<When, NotOffered> {
        const WANTED: &str = "l1-miss, l2-miss, every, random:N or nth:N with N from 2 to 1000000";
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| (2..=1_000_000).contains(n));
        match text.split_once(':') {
            None if text == "l1-miss" => Ok(When::FirstMiss),
            None if text == "l2-miss" => Ok(When::SecondMiss),
            None if text == "every" => Ok(When::Every),
            Some(("random", n)) => number(n).map_or_else(|| refuse(text, WANTED), |n| Ok(When::Random(n))),
            Some(("nth", n)) => number(n).map_or_else(|| refuse(text, WANTED), |n| Ok(When::Nth(n))),
            _ => refuse(text, WANTED),
        }
    }
}

impl std::fmt::Display for When {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            When::FirstMiss => out.write_str("l1-miss"),
            When::SecondMiss => out.write_str("l2-miss"),
            When::Every => out.write_str("every"),
            When::Random(n) => write!(out, "random:{n}"),
            When::Nth(n) => write!(out, "nth:{n}"),
        }
    }
}

impl FromStr for Sync {
    type Err = NotOffered;
    fn from_str(text: &str) -> Result<Sync, NotOffered> {
        match text {
            "none" => Ok(Sync::Nothing),
            "coherent" => Ok(Sync::Coherent),
            cycles => match cycles.parse::<u32>() {
                Ok(cycles) if cycles <= 100_000 => Ok(Sync::Cycles(cycles)),
                _ => refuse(text, "none, coherent, or cycles from 0 to 100000"),
            },
        }
    }
}

impl FromStr for TablePlacement {
    type Err = NotOffered;
    fn from_str(text: &str) -> Result<TablePlacement, NotOffered> {
        match text {
            "fast" => Ok(TablePlacement::Fast),
            "slow" => Ok(TablePlacement::Slow),
            "with-data" => Ok(TablePlacement::WithData),
            _ => refuse(text, "fast, slow or with-data"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_offered_is_refused_with_what_is() {
        assert_eq!("16".parse::<Width>(), Ok(Width::W16));
        assert!("12".parse::<Width>().unwrap_err().to_string().contains("8, 16 or 64"));
        assert_eq!("random:64".parse::<When>(), Ok(When::Random(64)));
        for text in ["random:1", "random:x", "nth", "nth:", "L1", ""] {
            let error = text.parse::<When>().unwrap_err().to_string();
            assert!(error.contains("l1-miss") && error.contains(&format!("{text:?}")), "{error}");
        }
        assert_eq!("100".parse::<Sync>(), Ok(Sync::Cycles(100)));
        assert!("-1".parse::<Sync>().is_err() && "NaN".parse::<Sync>().is_err());
        assert!("huge".parse::<Layout>().is_err() && "dram".parse::<TablePlacement>().is_err());
        for when in [When::FirstMiss, When::SecondMiss, When::Every, When::Random(7), When::Nth(9)] {
            assert_eq!(when.to_string().parse::<When>(), Ok(when));
        }
    }
}
