//! Counter lines that several cores update: each update needs the line, and one waits for the other.
//!
//! In: which core updates which line at which time. Out: how long that core waits. Must not: know what is counted.
//!
//! | constant | value | source |
//! |---|---|---|
//! | locked update of an own line | 20 cycles | Agner Fog's instruction tables: 18 to 20 cycles of a locked add on Skylake |
//! | line from another core's cache | 100 cycles | Assumption: two crossings of the last-level cache, 44 cycles each, and the snoop |

use super::tables::REGION_SHIFT;

/// Cycles of a locked read-modify-write of a line the core owns.
pub const OWN_CYCLES: f64 = 20.0;
/// Cycles until a line that another core changed has come over.
pub const TRANSFER_CYCLES: f64 = 100.0;

const NOBODY: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Line {
    owner: u16,
    free_at: f64,
}

/// What the updates came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Contended {
    /// Updates of a line that another core had changed last.
    pub transfers: u64,
    /// Updates that found the line busy.
    pub waits: u64,
    /// Nanoseconds they waited for it.
    pub wait_ns: f64,
}

/// Who owns each line, and until when it is busy.
#[derive(Clone, Debug)]
pub struct Contention {
    lines_a_region: usize,
    regions: Vec<Vec<Line>>,
    own_ns: f64,
    transfer_ns: f64,
    /// Totals.
    pub contended: Contended,
}

impl Contention {
    /// No core owns a line. Each PMD table has `region_bytes` of counters.
    pub fn new(region_bytes: u64, frequency_hertz: f64) -> Contention {
        let cycle = 1e9 / frequency_hertz;
        Contention {
            lines_a_region: region_bytes.div_ceil(64) as usize,
            regions: Vec::new(),
            own_ns: OWN_CYCLES * cycle,
            transfer_ns: TRANSFER_CYCLES * cycle,
            contended: Contended::default(),
        }
    }

    /// Core `core` updates line `line` of the region of `page` at `now`; `fetch_ns` is what memory or cache need where no
    /// core owns it. Returns the nanoseconds until the update is done.
    pub fn update(&mut self, page: u32, line: u64, core: usize, now: f64, fetch_ns: f64) -> f64 {
        let region = (page >> REGION_SHIFT) as usize;
        if self.regions.len() <= region {
            self.regions.resize(region + 1, Vec::new());
        }
        let lines = &mut self.regions[region];
        if lines.is_empty() {
            lines.resize(self.lines_a_region, Line { owner: NOBODY, free_at: 0.0 });
        }
        let line = &mut lines[line as usize];
        let begin = now.max(line.free_at);
        if begin > now {
            self.contended.waits += 1;
            self.contended.wait_ns += begin - now;
        }
        let bring = match line.owner {
            NOBODY => fetch_ns,
            owner if usize::from(owner) == core => 0.0,
            _ => {
                self.contended.transfers += 1;
                self.transfer_ns
            }
        };
        *line = Line { owner: core as u16, free_at: begin + bring + self.own_ns };
        line.free_at - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_pays_the_fetch_once_and_two_cores_take_turns() {
        let mut alone = Contention::new(4096, 1e9);
        assert_eq!(alone.update(0, 3, 0, 0.0, 80.0), 100.0);
        assert_eq!(alone.update(0, 3, 0, 500.0, 80.0), 20.0);
        assert_eq!(alone.contended, Contended::default());
        // Four cores at the same time: each waits for all before it.
        let mut shared = Contention::new(4096, 1e9);
        let waits: Vec<f64> = (0..4).map(|core| shared.update(0, 3, core, 1000.0, 80.0)).collect();
        assert_eq!(waits, [100.0, 220.0, 340.0, 460.0]);
        assert_eq!((shared.contended.transfers, shared.contended.waits), (3, 3));
        assert_eq!(shared.contended.wait_ns, 100.0 + 220.0 + 340.0);
        // Other lines do not wait.
        assert_eq!(shared.update(0, 4, 0, 1000.0, 80.0), 100.0);
    }
}
