//! Advice on how much fast memory a program needs: the figures of `terrace size advise`, as JSON, as a table and in words.
//!
//! In: what was seen of a program, machines, a target and prices. Out: a curve a machine and what follows of it. Must not: claim
//! more than the marks of pages say.

use serde_json::json;
use terrace_machine::preset::Machine;
use terrace_sizing::advise::{Point, Profile, cost_saved, least_share};

use super::units;

/// A curve and what follows of it.
pub(crate) struct Advice {
    pub machine: Machine,
    pub curve: Vec<Point>,
    /// Least shares for the target: expected, and if the most is true.
    pub share: f64,
    pub careful_share: f64,
    pub cost_saved: f64,
    pub careful_cost_saved: f64,
}

impl Advice {
    /// What the profile says for a machine: `max_slowdown` is the loss that is accepted, `prices` those of fast and slow memory.
    pub(crate) fn new(machine: Machine, profile: &Profile, max_slowdown: f64, prices: (f64, f64)) -> Advice {
        let curve = profile.curve(&machine);
        let share = least_share(&curve, max_slowdown, |point| point.loss);
        let careful_share = least_share(&curve, max_slowdown, |point| point.loss_high);
        let saved = |share| cost_saved(&machine, share, prices.0, prices.1);
        let (cost_saved, careful_cost_saved) = (saved(share), saved(careful_share));
        Advice { machine, curve, share, careful_share, cost_saved, careful_cost_saved }
    }
}

/// Advice for all machines, and what it is about.
pub(crate) struct Advices<'a> {
    pub of: Vec<Advice>,
    pub profile: &'a Profile,
    pub max_slowdown: f64,
    /// What as much of fast and of slow memory costs.
    pub prices: (f64, f64),
}

/// The columns of the table: what is expected, and what holds in the worst case.
pub(crate) const COLUMNS: [&str; 6] = [
    "machine",
    "fast memory",
    "fast memory at worst",
    "cost saved",
    "cost saved at worst",
    "loss with half of it fast (least to most)",
];

impl Advices<'_> {
    /// As `--json` prints it.
    pub(crate) fn as_json(&self) -> serde_json::Value {
        let machines: Vec<_> = self
            .of
            .iter()
            .map(|advice| {
                json!({
                    "machine": advice.machine.name, "fast_share": advice.share, "fast_share_careful": advice.careful_share,
                    "cost_saved_share": advice.cost_saved, "cost_saved_share_careful": advice.careful_cost_saved,
                    "curve": advice.curve,
                })
            })
            .collect();
        let (fast, slow) = self.prices;
        json!({
            "max_slowdown": self.max_slowdown, "profile": self.profile, "resident_bytes": self.profile.pages() * 4096,
            "price_fast": fast, "price_slow": slow, "machines": machines,
        })
    }

    /// What was seen, in a sentence.
    pub(crate) fn seen(&self) -> String {
        format!(
            "{} resident, seen in {} windows of {}; nothing was moved, losses are predicted",
            units::bytes(self.profile.pages() * 4096),
            self.profile.windows,
            units::seconds(self.profile.window_seconds)
        )
    }

    /// What the table says.
    pub(crate) fn meaning(&self) -> String {
        let (fast, slow) = self.prices;
        format!(
            "Least fast memory for a loss of {}, as expected, and at worst: if every touch of a page reads all of it, and pages in use all the time take all the time. Fast memory costs {fast}, slow memory {slow}.",
            percent(self.max_slowdown)
        )
    }

    /// A row a machine.
    pub(crate) fn rows(&self) -> Vec<[String; 6]> {
        let row = |advice: &Advice| {
            let half = advice.curve.get(49);
            [
                advice.machine.name.clone(),
                units::percent(advice.share),
                units::percent(advice.careful_share),
                percent(advice.cost_saved),
                percent(advice.careful_cost_saved),
                half.map_or_else(
                    || "not known: it was idle".to_owned(),
                    |half| {
                        format!("{} ({} to {})", percent(half.loss), percent(half.loss_low), percent(half.loss_high))
                    },
                ),
            ]
        };
        self.of.iter().map(row).collect()
    }

    /// As a terminal shows it.
    pub(crate) fn text(&self) -> String {
        let mut out = format!("{}\n{}\n", self.seen(), self.meaning());
        let mut row = |cells: [String; 6]| {
            let [name, share, careful, saved, careful_saved, at_half] = cells;
            out += &format!("  {name:<14}{share:>12}{careful:>10}{saved:>12}{careful_saved:>10}   {at_half}\n");
        };
        let [name, share, _, saved, _, at_half] = COLUMNS;
        row([name, share, "at worst", saved, "at worst", at_half].map(str::to_owned));
        self.rows().into_iter().for_each(row);
        out
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_program_has_rows_and_no_losses() {
        let profile = Profile { windows: 30, window_seconds: 1.0, pages_by_windows: vec![1000], ..Profile::default() };
        let machine = Machine::preset("cxl-pond").unwrap();
        let of = vec![Advice::new(machine, &profile, 0.05, (4.0, 2.0))];
        let text = Advices { of, profile: &profile, max_slowdown: 0.05, prices: (4.0, 2.0) }.text();
        assert!(text.contains("not known: it was idle"), "{text}");
    }
}
