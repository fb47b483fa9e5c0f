//! The online tuner: every interval a vector, a query, and a limit of fast memory.
//!
//! In: windows of a running program: what it did, how much fast memory it held, how much slower than with everything fast it
//! was, if that could be observed. Out: the share of the full size that should be fast from now on. Must not: hold the limit, read
//! a clock, or be driven differently live than in the simulator.
//!
//! [`Mode::Paper`] is Tuna's loop (section 3.3): the least size whose predicted loss is within the target, else no change.
//!
//! [`Mode::Measured`] goes by what is observed where it can be. The database predicts a loss for the present size as well, and
//! the ratio of observed to predicted loss over the last windows is kept as an interval. A smaller size is taken only if, by the upper
//! end of that interval, it stays within the target; and, since a program's memory gets hotter the deeper one cuts, only if the
//! straight line through what was observed says so, too; and only a step at a time. A window that breaks the target is answered
//! at once: by the size that held just before, and if that breaks it as well, by the size at which the line through the last
//! observation meets half the target. After that the tuner rests, and does not go below the size that held: for a while where the percentile
//! allows the break, and where it does not until it allows another as long as the longest so far. The mean over time and the 95th percentile of the
//! windows are kept below the target: what is aimed at falls when either comes near it. Without an observation the mode does what the
//! paper does.
//!
//! Fast memory that the limit leaves unused costs nothing to withhold: all but what is in use, what the program grew by lately (twice: it may go
//! on), and a margin is withheld at once, but not what has just been given back. What is slow while there is room would be slow with more, too:
//! it counts against the target as what managing costs does, and no larger size is the answer. Where the program grows, the
//! limit grows with it: what was found out is how many pages it can do without; and no smaller size is tried meanwhile.
//!
//! A loss has three parts ([`Loss`]). What is slow at a size costs again in every window: that is the size's, and by it sizes are
//! judged. What moving pages out costs is paid once, and what managing costs at all is there at any size: both count against the
//! target and slow the tuner down, but no size is given up for them, as bringing pages back would only cost more. A step is no
//! larger than what is left of the target pays for moving it.
//!
//! Where a slow page comes back by a fault, what is withheld has a price that is known beforehand: all of it may come back at once, as
//! when a program reads everything it has before it ends. So much is withheld at most that the mean would still be within the
//! target then; and a step may be as large as one window can pay for.
//!
//! The first window is not acted on: it holds the program's start.

use std::collections::VecDeque;
use std::time::Duration;

use terrace_core::units::Time;

use crate::curve::Curve;
use crate::index::{Answer, Index};
use crate::vector::{ConfigVector, VectorError};

/// How the tuner decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By the database alone.
    Paper,
    /// By the database, corrected by what is observed.
    Measured,
}

/// What a tuner is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TunerConfig {
    /// The target: how much longer the program may take, above 0 and at most 1.
    pub tau: f64,
    /// How often it decides. The paper's is 2.5 s.
    pub interval: Duration,
    /// Records asked for a curve.
    pub neighbours: usize,
    /// How it decides.
    pub mode: Mode,
    /// The least share it ever asks for.
    pub least_share: f64,
}

impl TunerConfig {
    /// The paper's interval, the nearest record as in the paper, and no less than a hundredth, the least size of a record.
    pub const fn new(tau: f64, mode: Mode) -> TunerConfig {
        TunerConfig { tau, interval: Duration::from_millis(2500), neighbours: 1, mode, least_share: 0.01 }
    }
}

/// What a program did since the last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// When it ended.
    pub end: Time,
    /// How long it was.
    pub length: Duration,
    /// Counts over the window, whatever its length.
    pub vector: ConfigVector,
    /// Share of the full size that it held in fast memory, or was allowed to, whichever was more.
    pub held_share: f64,
    /// Share of the full size that this saved: what is not held, less what slow memory takes of fast memory (compressed memory
    /// lies in it).
    pub saved_share: f64,
    /// How much longer it took than with everything fast and unmanaged, if that was observed.
    pub loss: Option<Loss>,
    /// Share of the full size that was in use in fast memory at its end.
    pub used_share: f64,
    /// Share of the full size that the program grew by in it, and the limit did not.
    pub growth_share: f64,
    /// The same where the limit grew with it.
    pub followed_share: f64,
    /// Whether the limit left room all the time: then a larger one would not have made less slow.
    pub left_room: bool,
    /// Seconds that the program would wait if all of its full size were slow and came back at once; `None` where slow memory is
    /// used in its place, or the price of a page is not known.
    pub return_seconds: Option<f64>,
    /// Seconds that the program would lose if all of its full size was moved to slow memory; `None` where that costs it nothing
    /// that is known.
    pub move_seconds: Option<f64>,
}

impl Window {
    /// How much longer it took, if that was observed: what is slow though there is room is not the present size's, and counts as what
    /// managing costs.
    pub fn loss_by_limit(&self) -> Option<Loss> {
        self.loss.map(|loss| if self.left_room { loss.not_by_size() } else { loss })
    }
}

/// How much longer a window took than it would have without: each part over that time; 0.05 is 5 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Loss {
    /// By what is slow at this size: lost again in each window that the size stays.
    pub standing: f64,
    /// By changing the size: pages that went to slow memory, and not in the place of others that came back. Lost once.
    pub moving: f64,
    /// By managing at all, at any size: processor time that the program would have had.
    pub managing: f64,
    /// Lower end of the interval in which the sum lies.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Loss {
    /// A loss that is known for sure, and the size's alone.
    pub const fn of_size(loss: f64) -> Loss {
        Loss { standing: loss, moving: 0.0, managing: 0.0, low: loss, high: loss }
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.standing + self.moving + self.managing
    }

    fn not_by_size(self) -> Loss {
        Loss { standing: 0.0, managing: self.managing + self.standing, ..self }
    }
}

/// Whether a limit leaves room for pages: more of it is unused than policies keep free by themselves ([`MARGIN`]). That all the
/// program has would just fit is not enough, as policies demote before it does.
pub fn leaves_room(limit: u64, used: u64) -> bool {
    used as f64 <= limit as f64 * (1.0 - MARGIN)
}

/// What policies keep free of fast memory: TPP 2 %, MEMTIS and FlexMem 3 %; and as much again of the full size is left above what
/// is in use.
pub const MARGIN: f64 = 0.03;

/// Why the limit is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing was decided: the program did nothing, or has just begun.
    Waited,
    /// The size stays.
    Kept,
    /// Less.
    Shrunk,
    /// More, as the prediction has it.
    Grew,
    /// More, because the target was broken.
    BackedOff,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Interval {
    /// When, in seconds since the start.
    pub seconds: f64,
    /// Length of the window before it.
    pub window_seconds: f64,
    /// Share of the full size that was not held in the window.
    pub saved_share: f64,
    /// Whether the limit left room in it, so that nothing of the loss is the limit's.
    pub left_room: bool,
    /// Observed loss of the window, by the limit: all of it.
    pub observed_loss: Option<f64>,
    /// Its parts, and the interval in which it lies.
    pub loss: Option<Loss>,
    /// What the database predicts for the size of the window.
    pub predicted_loss: Option<f64>,
    /// The interval of observed over predicted loss.
    pub ratio_low: f64,
    /// Its upper end.
    pub ratio_high: f64,
    /// The share from now on.
    pub fast_share: f64,
    /// What was done.
    pub action: Action,
    /// Whether the database covers the window's vector.
    pub in_coverage: bool,
}

/// A run under a tuner, summed up.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Share of fast memory saved, mean over time.
    pub saved_share_mean: f64,
    /// The most that was saved in a window.
    pub saved_share_max: f64,
    /// Observed loss of the whole: time lost over the time it would have taken; `None` if nothing observed it.
    pub loss: Option<f64>,
    /// Lower end of the interval in which that lies, and the upper end: by what cannot be told from within.
    pub loss_low: Option<f64>,
    /// Its upper end.
    pub loss_high: Option<f64>,
    /// 95th percentile of the windows' observed losses.
    pub loss_p95: Option<f64>,
    /// The target.
    pub target_tau: f64,
}

/// Windows by which the ratio's interval is known.
const RATIO_WINDOWS: usize = 6;
/// Below this predicted loss a ratio says more of noise than of the prediction.
const LEAST_PREDICTED: f64 = 0.002;
/// What is aimed at, as a share of the target: room for the windows to differ.
const AIM: f64 = 0.85;
/// And while one of mean and 95th percentile is near the target.
const AIM_LOW: f64 = 0.5;
/// A step down: at least a hundredth, the grain of a record; at most a twentieth of all, and of what is withheld as much again while
/// nothing was lost, a quarter where the loss is what is aimed at.
const LEAST_STEP: f64 = 0.01;
const STEP_OF_WITHHELD: [f64; 2] = [1.0, 0.25];
const MOST_STEP: f64 = 0.05;
/// Longest rest after the target was broken, in intervals.
const MOST_REST: u32 = 16;
/// Of the windows, so many may break the target: the rest of 95 in 100.
const BREAKS: f64 = 0.05;
/// For so many rests the size that held is not undercut if the percentile allows the break: 20 s, with the paper's interval.
const WALL_RESTS: u64 = 4;

/// What is summed up over the windows.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Seconds lost: at least, as estimated, at most.
    lost: [f64; 3],
    /// What the windows would have taken without.
    without: f64,
    /// Saved share times seconds.
    saved: f64,
    /// Seconds in all.
    seconds: f64,
}

/// See the module's header.
pub struct Tuner {
    config: TunerConfig,
    share: f64,
    began: Option<Time>,
    windows: u64,
    ratios: VecDeque<f64>,
    /// Observed losses at the sizes of late.
    seen: VecDeque<(f64, f64)>,
    rest: u32,
    breaks: u32,
    /// The size of the latest window that held, until it was gone back to.
    held_well: Option<f64>,
    /// Not below this size, up to this window at least.
    wall: (f64, u64),
    /// Windows in succession that broke the target: up to now, and the most.
    running_break: usize,
    longest_break: usize,
    /// What managing costs of late.
    managing: f64,
    sums: Sums,
    /// Seconds that may still be lost with the mean since the start within the target; not forgotten.
    credit: f64,
    losses: Vec<f64>,
    saved_max: f64,
    intervals: Vec<Interval>,
}

impl Tuner {
    /// A tuner of a program that has everything fast.
    pub fn new(config: TunerConfig) -> Tuner {
        Tuner {
            config,
            share: 1.0,
            began: None,
            windows: 0,
            ratios: VecDeque::new(),
            seen: VecDeque::new(),
            rest: 0,
            breaks: 0,
            held_well: None,
            wall: (0.0, 0),
            running_break: 0,
            longest_break: 0,
            managing: 0.0,
            sums: Sums::default(),
            credit: 0.0,
            losses: Vec::new(),
            saved_max: 0.0,
            intervals: Vec::new(),
        }
    }

    /// What it was made with.
    pub const fn config(&self) -> &TunerConfig {
        &self.config
    }

    /// The share that should be fast now.
    pub const fn share(&self) -> f64 {
        self.share
    }

    /// Decisions so far.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Forgets all but the latest `windows`, once there are twice as many: for those who run for ever. What is summed up, and
    /// held against the target, are from then on the windows that are left.
    pub fn forget_all_but(&mut self, windows: usize) {
        if self.intervals.len() < 2 * windows.max(1) {
            return;
        }
        self.intervals.drain(..self.intervals.len() - windows);
        self.sums = Sums::default();
        self.losses.clear();
        for place in 0..self.intervals.len() {
            let Interval { saved_share, window_seconds, loss, .. } = self.intervals[place];
            self.sum_up(saved_share, window_seconds, loss);
        }
    }

    fn sum_up(&mut self, saved: f64, seconds: f64, loss: Option<Loss>) {
        self.sums.saved += saved * seconds;
        self.sums.seconds += seconds;
        if let Some(loss) = loss {
            let without = without_loss(seconds, loss.total());
            for (sum, loss) in self.sums.lost.iter_mut().zip([loss.low, loss.total(), loss.high]) {
                *sum += loss * without;
            }
            self.sums.without += without;
            self.losses.push(loss.total());
        }
    }

    /// Takes in a window and decides. Returns the share from now on.
    ///
    /// # Errors
    /// When the window's figures cannot be those of a program; the limit stays.
    pub fn decide(&mut self, window: &Window, index: &Index) -> Result<f64, VectorError> {
        let seconds = window.length.as_secs_f64();
        let began = *self
            .began
            .get_or_insert(Time::from_nanos(window.end.as_nanos().saturating_sub(window.length.as_nanos() as u64)));
        self.windows += 1;
        self.account(window, seconds);
        let idle = window.vector.fast_accesses + window.vector.slow_accesses < 1.0 || seconds <= 0.0;
        let (mut action, mut predicted, mut covered) = (Action::Waited, None, true);
        if !idle {
            let vector = window.vector.over_interval(seconds);
            let answer = index.query(&vector, self.config.neighbours)?;
            covered = answer.uncovered.is_none();
            predicted = Some(answer.curve.loss(window.held_share));
            self.learn(window, &answer.curve);
            if self.windows > 1 {
                let share = self.next_share(window, &answer).clamp(self.config.least_share, 1.0);
                action = match share - self.share {
                    change if change < -1e-9 => Action::Shrunk,
                    change if change > 1e-9 && window.loss_by_limit().is_some_and(|loss| self.is_broken(loss)) => {
                        Action::BackedOff
                    }
                    change if change > 1e-9 => Action::Grew,
                    _ => Action::Kept,
                };
                self.share = share;
            }
        }
        let (ratio_low, ratio_high) = self.ratio();
        self.intervals.push(Interval {
            seconds: window.end.since(began).as_secs_f64(),
            window_seconds: seconds,
            saved_share: window.saved_share,
            left_room: window.left_room,
            observed_loss: window.loss_by_limit().map(|loss| loss.total()),
            loss: window.loss_by_limit(),
            predicted_loss: predicted,
            ratio_low,
            ratio_high,
            fast_share: self.share,
            action,
            in_coverage: covered,
        });
        Ok(self.share)
    }

    fn account(&mut self, window: &Window, seconds: f64) {
        let loss = window.loss_by_limit();
        self.sum_up(window.saved_share, seconds, loss);
        self.saved_max = self.saved_max.max(window.saved_share);
        self.running_break = match loss {
            Some(loss) if loss.total() > self.config.tau => self.running_break + 1,
            _ => 0,
        };
        self.longest_break = self.longest_break.max(self.running_break);
        self.credit += loss.map_or(0.0, |loss| (self.config.tau - loss.total()) * without_loss(seconds, loss.total()));
        // What is left over of an earlier size is none of managing's own.
        if let Some(loss) = window.loss {
            self.managing = if self.windows <= 1 { loss.managing } else { f64::midpoint(self.managing, loss.managing) };
        }
    }

    /// Whether a larger size is the answer to a loss: what managing costs leaves that much less to the size, but half of the target at
    /// least, as a size does not change it.
    fn is_broken(&self, loss: Loss) -> bool {
        loss.standing > self.config.tau - self.managing.min(self.config.tau / 2.0)
    }

    /// Takes in how right the prediction was.
    fn learn(&mut self, window: &Window, curve: &Curve) {
        let Some(loss) = window.loss_by_limit() else { return };
        let loss = loss.standing;
        self.seen.push_back((window.held_share, loss));
        let predicted = curve.loss(window.held_share);
        // With next to nothing withheld both are noise.
        if predicted >= LEAST_PREDICTED && window.held_share < 1.0 - LEAST_STEP / 2.0 {
            self.ratios.push_back(loss / predicted);
        }
        for list in [self.seen.len(), self.ratios.len()].into_iter().enumerate() {
            match list {
                (0, length) if length > RATIO_WINDOWS => drop(self.seen.pop_front()),
                (1, length) if length > RATIO_WINDOWS => drop(self.ratios.pop_front()),
                _ => {}
            }
        }
    }

    /// The interval of observed over predicted loss: 1 to 1 while nothing was observed.
    fn ratio(&self) -> (f64, f64) {
        if self.ratios.is_empty() {
            return (1.0, 1.0);
        }
        let low = self.ratios.iter().copied().fold(f64::INFINITY, f64::min);
        (low, self.ratios.iter().copied().fold(0.0, f64::max))
    }

    fn next_share(&mut self, window: &Window, answer: &Answer) -> f64 {
        match (self.config.mode, window.loss_by_limit()) {
            (Mode::Measured, Some(loss)) => {
                let needed = (window.used_share + 2.0 * window.growth_share + MARGIN).min(1.0);
                // What was given back is not taken again before it could be used.
                if window.left_room && self.rest == 0 && needed.max(self.wall()) < self.share {
                    self.held_well = Some(self.share);
                    return needed.max(self.wall());
                }
                let growing = window.growth_share + window.followed_share >= LEAST_STEP;
                if growing && !self.is_broken(loss) {
                    // Nothing is learnt of the size while the program makes it another one: what it has just got it uses.
                    return (self.share + window.growth_share).max(needed);
                }
                self.measured(loss, &answer.curve, window).max(self.payable(window)) + window.growth_share
            }
            _ => answer.curve.least_share(self.config.tau),
        }
    }

    /// Whether the percentile allows so many broken windows more than there were.
    fn breaks_allow(&self, more: usize) -> bool {
        let broken = self.losses.iter().filter(|&&loss| loss > self.config.tau).count();
        (broken + more) as f64 <= BREAKS * self.losses.len() as f64
    }

    /// The size that is not undercut now: the last one gone back to, for some rests, and until the percentile allows as many windows as the
    /// longest break took. What was given back comes back by and by, and that takes time of its own.
    fn wall(&self) -> f64 {
        let (share, until) = self.wall;
        if self.windows < until || !self.breaks_allow(self.longest_break) { share } else { 0.0 }
    }

    /// What the losses so far leave to aim at.
    fn aim(&self) -> f64 {
        let tau = self.config.tau;
        let broken = self.losses.iter().filter(|&&loss| loss > tau).count();
        let mean = self.sums.lost[1] / self.sums.without.max(f64::MIN_POSITIVE);
        let near = broken as f64 > BREAKS * self.losses.len() as f64 || mean > AIM * tau;
        tau * if near && self.losses.len() > 2 { AIM_LOW } else { AIM }
    }

    /// The least share of which the mean could pay for all that is withheld, if it came back at once, and for moving it there.
    fn payable(&self, window: &Window) -> f64 {
        let Some(back) = window.return_seconds else { return 0.0 };
        let away = window.move_seconds.unwrap_or(0.0);
        let least = (1.0 - self.credit / back).min(1.0);
        if least >= self.share { least } else { (back + self.share * away - self.credit) / (back + away) }
    }

    fn measured(&mut self, loss: Loss, curve: &Curve, window: &Window) -> f64 {
        let (tau, held) = (self.config.tau, window.held_share);
        let withheld = 1.0 - self.share;
        let (broken, total, loss) = (self.is_broken(loss), loss.total(), loss.standing);
        if broken {
            // A break that the percentile allows is no reason to rest longer than to see what the size gone back to does.
            let allowed = self.breaks_allow(0);
            // What was out is still coming back while it rests: that is the same break.
            match (allowed, self.rest == 0) {
                (true, _) => self.breaks = 1,
                (false, true) => self.breaks += 1,
                (false, false) => {}
            }
            self.rest = (1 << self.breaks.clamp(1, 8)).min(MOST_REST);
            // The line from here to no loss at full size, met at half the target.
            let line = 1.0 - withheld * (0.5 * tau / loss).min(0.9);
            let back = self.held_well.take().filter(|well| *well > self.share + LEAST_STEP / 2.0);
            let share = back.unwrap_or(line.max(self.share + LEAST_STEP));
            self.wall = (share.min(1.0), self.windows + u64::from(self.rest) * WALL_RESTS);
            return share;
        }
        // What one window's target pays for moving.
        let moved = |budget: f64| {
            let pays =
                |seconds: f64| budget.max(0.0) * self.config.interval.as_secs_f64() / seconds.max(f64::MIN_POSITIVE);
            window.move_seconds.map_or(1.0, pays)
        };
        let on_its_way = LEAST_STEP.min(moved(tau));
        // Sizes that are on their way down were not held yet.
        if held <= self.share + on_its_way {
            self.held_well = Some(self.share);
        }
        if self.rest > 0 {
            self.rest -= 1;
            return self.share;
        }
        self.breaks = self.breaks.saturating_sub(u32::from(self.windows.is_multiple_of(u64::from(MOST_REST))));
        // A limit that is not reached yet was not observed; what is on its way is waited for. And what moved too fast, or managing, may
        // have cost more than the target has: no more is moved until it does not.
        if held > self.share + on_its_way || total > tau {
            return self.share;
        }
        let aim = self.aim();
        let (_, high) = self.ratio();
        let used_up = (loss / aim).clamp(0.0, 1.0);
        let [bold, careful] = STEP_OF_WITHHELD;
        let paid = |seconds: f64| tau * self.config.interval.as_secs_f64() / seconds;
        let most_step = window.return_seconds.map_or(MOST_STEP, |seconds| paid(seconds).max(MOST_STEP));
        let most_step = most_step.min(moved(aim - self.managing - loss));
        let step = (withheld * (bold + used_up * (careful - bold))).clamp(LEAST_STEP.min(most_step), most_step);
        let worst = self
            .seen
            .iter()
            .filter(|(share, _)| (share - held).abs() <= step)
            .map(|(_, loss)| *loss)
            .fold(loss, f64::max);
        let slope = self.slope(held, worst);
        let floor = self.config.least_share.max(self.wall()).max(self.payable(window));
        let fits = |share: f64| {
            let by_database = high * curve.loss(share);
            let by_line = worst + slope * (held.min(self.share) - share).max(0.0);
            let move_again =
                window.move_seconds.unwrap_or(0.0) * (self.share - share) / self.config.interval.as_secs_f64();
            by_database.max(by_line) + self.managing + move_again <= aim
        };
        // The furthest of ten places within the step that fits.
        (1..=10)
            .rev()
            .map(|tenth| self.share - step * f64::from(tenth) / 10.0)
            .find(|&share| share >= floor && fits(share))
            .unwrap_or(self.share)
    }

    /// How fast the loss grows when the size shrinks, by what was seen of late: at least as on average so far.
    fn slope(&self, held: f64, loss: f64) -> f64 {
        let average = loss / (1.0 - held).max(LEAST_STEP);
        let (share, seen) = self.seen.front().copied().unwrap_or((1.0, 0.0));
        let recent = if share - held >= LEAST_STEP { (loss - seen) / (share - held) } else { 0.0 };
        average.max(recent)
    }

    /// The run so far, summed up.
    pub fn summary(&self) -> Summary {
        let Sums { lost, without, saved, seconds } = self.sums;
        let [low, loss, high] = lost.map(|lost| (without > 0.0).then(|| lost / without));
        Summary {
            saved_share_mean: if seconds > 0.0 { saved / seconds } else { 0.0 },
            saved_share_max: self.saved_max,
            loss,
            loss_low: low,
            loss_high: high,
            loss_p95: percentile_95(&self.losses),
            target_tau: self.config.tau,
        }
    }
}

/// The least of these losses that 95 of 100 do not exceed; `None` without any.
pub fn percentile_95(losses: &[f64]) -> Option<f64> {
    let mut losses = losses.to_vec();
    losses.sort_by(f64::total_cmp);
    losses.get(((losses.len() as f64 * 0.95).ceil() as usize).saturating_sub(1)).copied()
}

/// What a window would have taken without its loss: one that is ten times as slow did a tenth of a window's work.
fn without_loss(seconds: f64, loss: f64) -> f64 {
    seconds / (1.0 + loss)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::tests::small;

    /// A program whose loss at a share is `loss(share)`, run for `windows` windows.
    fn play(config: TunerConfig, windows: u64, loss: impl Fn(u64, f64) -> Option<f64>) -> Tuner {
        let index = Index::new(small(500)).unwrap();
        let vector = ConfigVector::from_array([1e8, 1e5, 100.0, 100.0, 20.0, 1e9, 2.0, 8.0]);
        let mut tuner = Tuner::new(config);
        for number in 1..=windows {
            let window = Window {
                end: Time::from_nanos(number * 2_500_000_000),
                length: Duration::from_millis(2500),
                vector,
                held_share: tuner.share(),
                saved_share: 1.0 - tuner.share(),
                loss: loss(number, tuner.share()).map(Loss::of_size),
                used_share: tuner.share(),
                growth_share: 0.0,
                followed_share: 0.0,
                left_room: false,
                return_seconds: None,
                move_seconds: None,
            };
            tuner.decide(&window, &index).unwrap();
        }
        tuner
    }

    #[test]
    fn the_papers_loop_is_the_least_size_within_the_target() {
        let index = Index::new(small(500)).unwrap();
        let vector = ConfigVector::from_array([1e8, 1e5, 100.0, 100.0, 20.0, 1e9, 2.0, 8.0]);
        let expect = index.query(&vector, 1).unwrap().curve.least_share(0.05);
        let tuner = play(TunerConfig::new(0.05, Mode::Paper), 3, |_, _| Some(0.5));
        assert_eq!(tuner.intervals()[0].action, Action::Waited, "the first window is the program's start");
        assert_eq!(tuner.share(), expect);
    }

    #[test]
    fn a_program_with_cold_memory_gives_it_back_within_the_target() {
        // Half of it is cold; below that the loss is steep.
        let loss = |_, share: f64| Some(0.004 + (0.5 - share).max(0.0) * 2.0);
        let tuner = play(TunerConfig::new(0.05, Mode::Measured), 60, loss);
        let summary = tuner.summary();
        assert!(tuner.share() < 0.6, "{:?}", tuner.intervals().last());
        assert!(summary.saved_share_mean > 0.2 && summary.saved_share_max > 0.4, "{summary:?}");
        assert!(summary.loss.unwrap() <= 0.05 && summary.loss_p95.unwrap() <= 0.05, "{summary:?}");
    }

    #[test]
    fn a_broken_target_is_answered_at_once_and_not_tried_again_soon() {
        // From the 30th window on, the program needs everything.
        let loss = |window, share: f64| Some(if window < 30 { 0.002 } else { (1.0 - share) * 0.5 });
        let tuner = play(TunerConfig::new(0.05, Mode::Measured), 60, loss);
        let intervals = tuner.intervals();
        let first = intervals.iter().position(|interval| interval.observed_loss.unwrap() > 0.05).unwrap();
        assert_eq!(intervals[first].action, Action::BackedOff);
        let over = intervals.iter().filter(|interval| interval.observed_loss.unwrap() > 0.05).count();
        assert!(over <= 3, "{over} of 60 windows over the target");
        assert!(intervals[first + 1..].iter().all(|interval| interval.observed_loss.unwrap() <= 0.055));
        assert!(tuner.summary().loss.unwrap() < 0.05);
    }

    #[test]
    fn as_many_windows_break_the_target_as_the_percentile_allows_however_often_the_program_turns() {
        // Every so many windows it needs, for as many as three, what it does without in the others.
        for turns in [7, 13, 29, 50] {
            let loss = move |window: u64, share: f64| {
                let needs = window % turns < 3 && window > 3;
                Some(if needs { (1.0 - share) * 2.0 } else { 0.002 })
            };
            let tuner = play(TunerConfig::new(0.05, Mode::Measured), 400, loss);
            let summary = tuner.summary();
            assert!(summary.loss.unwrap() <= 0.05 && summary.loss_p95.unwrap() <= 0.05, "{turns}: {summary:?}");
            assert!(summary.saved_share_mean > 0.015, "{turns}: {summary:?}");
            for pair in tuner.intervals().windows(2).filter(|pair| pair[1].observed_loss.unwrap() > 0.05) {
                assert!(pair[1].fast_share > pair[0].fast_share, "given back at once: {pair:?}");
            }
        }
    }

    #[test]
    fn breaks_that_the_percentile_allows_do_not_make_it_rest_for_longer_and_others_do() {
        // One window in forty is slow whatever is withheld, if anything is; and one in eight.
        let broken_every = |every: u64| {
            let loss = move |window: u64, share: f64| {
                Some(if window.is_multiple_of(every) && share < 1.0 { 0.2 } else { 0.002 })
            };
            play(TunerConfig::new(0.05, Mode::Measured), 240, loss)
        };
        let [seldom, often] = [40, 8].map(|every| broken_every(every).summary());
        assert!(seldom.loss_p95.unwrap() <= 0.05 && seldom.loss.unwrap() <= 0.05, "{seldom:?}");
        assert!(
            seldom.saved_share_mean > 0.3 && often.saved_share_mean < seldom.saved_share_mean,
            "{seldom:?}, {often:?}"
        );
    }

    #[test]
    fn what_was_given_back_is_not_taken_again_before_it_could_be_used() {
        let index = Index::new(small(500)).unwrap();
        let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
        let mut used: f64 = 1.0;
        for number in 1..=14u64 {
            // At the eighth window it needs what is out; pages come back by a hundredth a window.
            let share = tuner.share();
            used = if number <= 8 { used.min(share) } else { (used + 0.01).min(share) };
            let broken = number == 8;
            let window = Window {
                end: Time::from_nanos(number * 2_500_000_000),
                length: Duration::from_millis(2500),
                vector: ConfigVector::from_array([1e8, 1e5, 100.0, 100.0, 20.0, 1e9, 2.0, 8.0]),
                held_share: share,
                saved_share: 1.0 - share,
                loss: Some(Loss::of_size(if broken { 0.4 } else { 0.0 })),
                used_share: used,
                growth_share: 0.0,
                followed_share: 0.0,
                left_room: number > 8 && used < share - MARGIN,
                return_seconds: None,
                move_seconds: None,
            };
            tuner.decide(&window, &index).unwrap();
        }
        let shares: Vec<f64> = tuner.intervals().iter().map(|interval| interval.fast_share).collect();
        assert!(shares[6] < shares[7], "given back: {shares:?}");
        assert!(shares[8..].iter().all(|share| *share >= shares[7]), "and not taken again: {shares:?}");
    }

    #[test]
    fn what_is_forgotten_is_no_longer_summed_up_and_nothing_else_changes() {
        let loss = |window, _| Some(if window <= 50 { 0.04 } else { 0.001 });
        let mut tuner = play(TunerConfig::new(0.05, Mode::Measured), 90, loss);
        let (share, whole) = (tuner.share(), tuner.summary());
        tuner.forget_all_but(46);
        assert_eq!(tuner.intervals().len(), 90, "not worth it yet");
        tuner.forget_all_but(40);
        assert_eq!((tuner.intervals().len(), tuner.share()), (40, share));
        let late = tuner.summary();
        assert!(late.loss.unwrap() < 0.01 && whole.loss.unwrap() > 0.02, "{late:?} of {whole:?}");
        assert!(late.loss_p95.unwrap() < 0.04 && late.saved_share_max == whole.saved_share_max);
    }

    #[test]
    fn unused_memory_is_withheld_at_once_and_a_growing_program_keeps_its_room() {
        let index = Index::new(small(500)).unwrap();
        let vector = ConfigVector::from_array([1e8, 1e5, 100.0, 100.0, 20.0, 1e9, 2.0, 8.0]);
        let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
        let mut used = 0.1;
        for number in 1..=12 {
            // Grows by 4 % a window up to the tenth, and is slowed down all the while by what its policy does.
            let growth = if number <= 10 { 0.04 } else { 0.0 };
            used += growth;
            assert!(used <= tuner.share(), "window {number}: {used} in use, {} allowed", tuner.share());
            let window = Window {
                end: Time::from_nanos(number * 2_500_000_000),
                length: Duration::from_millis(2500),
                vector,
                held_share: tuner.share(),
                saved_share: 1.0 - tuner.share(),
                loss: Some(Loss::of_size(0.8)),
                used_share: used,
                growth_share: growth,
                followed_share: 0.0,
                left_room: true,
                return_seconds: None,
                move_seconds: None,
            };
            tuner.decide(&window, &index).unwrap();
        }
        assert!(tuner.share() <= 0.5 + MARGIN + 1e-9, "{}", tuner.share());
        assert!((tuner.summary().loss.unwrap() - 0.8).abs() < 1e-9, "it counts, whosever it is");
        assert!(tuner.intervals().iter().all(|interval| interval.action != Action::BackedOff), "more would not help");
        assert!(tuner.summary().saved_share_mean > 0.4, "{:?}", tuner.summary());
    }

    #[test]
    fn what_compressed_memory_takes_is_not_saved_and_does_not_stop_the_tuner() {
        let index = Index::new(small(500)).unwrap();
        let vector = ConfigVector::from_array([1e8, 1e5, 100.0, 100.0, 20.0, 1e9, 2.0, 8.0]);
        let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
        for number in 1..=40 {
            let share = tuner.share();
            let window = Window {
                end: Time::from_nanos(number * 2_500_000_000),
                length: Duration::from_millis(2500),
                vector,
                held_share: share,
                // Everything that is out compresses two to one, and costs nothing.
                saved_share: (1.0 - share) / 2.0,
                loss: Some(Loss::of_size(0.0)),
                used_share: share,
                growth_share: 0.0,
                followed_share: 0.0,
                left_room: false,
                return_seconds: None,
                move_seconds: None,
            };
            tuner.decide(&window, &index).unwrap();
        }
        assert!(tuner.share() < 0.3, "{:?}", tuner.intervals().last());
        let summary = tuner.summary();
        assert!((0.3..0.5).contains(&summary.saved_share_max), "{summary:?}");
    }

    /// A program that touches nothing of half its memory for `windows` windows, and all of it in the next.
    fn read_all_at_the_end(windows: u64, return_seconds: f64) -> Summary {
        let index = Index::new(small(500)).unwrap();
        let vector = ConfigVector::from_array([1e8, 1e5, 100.0, 100.0, 20.0, 1e9, 2.0, 8.0]);
        let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
        let mut now = Time::ZERO;
        for number in 0..=windows {
            let share = tuner.share();
            let lost = if number == windows { (1.0 - share) * return_seconds } else { 0.0 };
            let length = Duration::from_secs_f64(2.5 + lost);
            now = now + length;
            let window = Window {
                end: now,
                length,
                vector,
                held_share: share,
                saved_share: 1.0 - share,
                loss: Some(Loss::of_size(lost / 2.5)),
                used_share: share,
                growth_share: 0.0,
                followed_share: 0.0,
                left_room: false,
                return_seconds: Some(return_seconds),
                move_seconds: None,
            };
            tuner.decide(&window, &index).unwrap();
        }
        tuner.summary()
    }

    #[test]
    fn the_mean_is_within_the_target_though_everything_comes_back_at_once() {
        // 100 GiB of pages that come back at ten microseconds each, and 2 GiB.
        for (return_seconds, windows) in [(262.0, 40), (262.0, 400), (5.2, 12), (5.2, 40)] {
            let summary = read_all_at_the_end(windows, return_seconds);
            let loss = summary.loss.unwrap();
            assert!(loss > 0.0 && loss <= 0.05, "{return_seconds} s, {windows} windows: {summary:?}");
            assert!(summary.saved_share_max > 0.01, "{summary:?}");
        }
        // A small program is not kept from what it can pay for.
        assert!(read_all_at_the_end(12, 0.5).saved_share_max > 0.5);
    }

    /// A program half of which is cold, whose pages cost it `price` seconds for all of them as they go out, managed for `managing`.
    fn move_out(windows: u64, price: f64, managing: f64) -> Tuner {
        let index = Index::new(small(500)).unwrap();
        let vector = ConfigVector::from_array([1e8, 1e5, 100.0, 100.0, 20.0, 1e9, 2.0, 8.0]);
        let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Measured));
        let mut held = 1.0;
        for number in 1..=windows {
            let share = tuner.share();
            let moved = f64::max(held - share, 0.0);
            held = share;
            let standing = (0.5 - share).max(0.0) * 2.0;
            let moving = moved * price / 2.5;
            let loss = standing + moving + managing;
            let window = Window {
                end: Time::from_nanos(number * 2_500_000_000),
                length: Duration::from_millis(2500),
                vector,
                held_share: share,
                saved_share: 1.0 - share,
                loss: Some(Loss { standing, moving, managing, low: loss * 0.5, high: loss * 1.5 }),
                used_share: share,
                growth_share: 0.0,
                followed_share: 0.0,
                left_room: false,
                return_seconds: Some(price),
                move_seconds: Some(price),
            };
            tuner.decide(&window, &index).unwrap();
        }
        tuner
    }

    #[test]
    fn pages_go_out_no_faster_than_the_target_pays_for_and_none_comes_back_for_it() {
        // 1 GiB and 100 GiB at ten microseconds a page.
        for (price, saved) in [(2.6, 0.3), (262.0, 0.01)] {
            let tuner = move_out(200, price, 0.0);
            let summary = tuner.summary();
            let loss = summary.loss.unwrap();
            assert!(loss <= 0.05 && summary.loss_p95.unwrap() <= 0.05, "{summary:?}");
            assert!(summary.saved_share_max > saved, "{price}: {summary:?}");
            assert!((summary.loss_low.unwrap() - loss * 0.5).abs() < 1e-9 && summary.loss_high.unwrap() > loss);
            let grew = tuner.intervals().iter().filter(|interval| interval.action == Action::BackedOff).count();
            assert_eq!(grew, 0, "moving is no reason to bring pages back");
        }
    }

    #[test]
    fn what_managing_costs_slows_the_tuner_down_and_is_no_reason_to_bring_pages_back() {
        let [free, dear, too_dear] = [0.0, 0.03, 0.08].map(|managing| move_out(60, 2.6, managing));
        assert!(dear.summary().saved_share_mean < free.summary().saved_share_mean);
        assert!(dear.summary().saved_share_mean > 0.01 && dear.summary().loss.unwrap() <= 0.05, "{:?}", dear.summary());
        assert_eq!(too_dear.share(), 1.0, "nothing is begun that the target cannot pay for");
        for tuner in [dear, too_dear] {
            assert!(tuner.intervals().iter().all(|interval| interval.action != Action::BackedOff));
        }
    }

    #[test]
    fn where_managing_takes_half_the_target_a_size_may_take_the_other_half() {
        let mut tuner = move_out(30, 2.6, 0.04);
        let broken = |tuner: &Tuner, standing| tuner.is_broken(Loss { standing, managing: 0.04, ..Loss::default() });
        assert!(!broken(&tuner, 0.024) && broken(&tuner, 0.026));
        tuner.managing = 0.01;
        assert!(!broken(&tuner, 0.039) && broken(&tuner, 0.041));
    }

    #[test]
    fn a_slow_window_counts_as_what_it_held_up_and_not_as_long_as_it_took() {
        // 10 windows at full speed, and one that took ten times as long.
        let loss = |number, _| Some(if number == 11 { 9.0 } else { 0.0 });
        let summary = play(TunerConfig::new(0.05, Mode::Measured), 11, loss).summary();
        // 2.25 s lost of 2.5, and 25.25 s without.
        assert!((summary.loss.unwrap() - 2.25 / 25.25).abs() < 1e-9, "{summary:?}");
    }

    #[test]
    fn a_limit_leaves_room_if_more_is_unused_than_policies_keep_free() {
        assert!(leaves_room(1000, 900) && leaves_room(1000, 970));
        assert!(!leaves_room(1000, 980));
    }

    #[test]
    fn without_an_observation_it_goes_by_the_database_and_an_idle_program_is_left_alone() {
        let measured = play(TunerConfig::new(0.05, Mode::Measured), 4, |_, _| None);
        let paper = play(TunerConfig::new(0.05, Mode::Paper), 4, |_, _| None);
        assert_eq!(measured.share(), paper.share());
        assert_eq!(measured.summary().loss, None);
        let index = Index::new(small(50)).unwrap();
        let mut tuner = Tuner::new(TunerConfig::new(0.05, Mode::Paper));
        let vector = ConfigVector::from_array([0.0, 0.0, 0.0, 0.0, 0.0, 1e9, 2.0, 1.0]);
        let window = Window {
            end: Time::from_nanos(1),
            length: Duration::from_secs(1),
            vector,
            held_share: 1.0,
            saved_share: 0.0,
            loss: None,
            used_share: 1.0,
            growth_share: 0.0,
            followed_share: 0.0,
            left_room: true,
            return_seconds: None,
            move_seconds: None,
        };
        assert_eq!(tuner.decide(&window, &index).unwrap(), 1.0);
        assert_eq!(tuner.intervals()[0].action, Action::Waited);
    }
}
