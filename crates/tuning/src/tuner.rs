//! The online tuner: every interval one window of a program, and a limit of fast memory.
//!
//! In: windows of a running program: how much fast memory it held, and how much slower than with everything fast it was, if that was
//! observed; and what a performance database predicts, if one was asked. Out: the share of the full size that should be fast from now on.
//! Must not: hold the limit, read a clock, ask a database, or be driven differently live than in the simulator.
//!
//! [`Mode::Paper`] is Tuna's loop (section 3.3): the least size whose predicted loss is within the target, else no change.
//!
//! [`Mode::Measured`] goes by what is observed where it can be. A smaller size is taken only if the straight line through what was
//! observed stays within the target there, since a program's memory gets hotter the deeper one cuts; and only a step at a time. With a
//! database that predicts a loss for the present size as well, the ratio of observed to predicted loss over the last windows is kept as
//! an interval, and the smaller size must stay within the target by the upper end of that interval, too. A window that breaks the target is answered
//! at once: by the size that held just before, and if that breaks it as well, by the size at which the line through the last
//! observation meets half the target. After that the tuner rests, and does not go below the size that held: for a while where the percentile
//! allows the break, and where it does not until it allows another as long as the longest so far. The mean over time and the 95th percentile of the
//! windows are kept below the target: what is aimed at falls when either comes near it. Without an observation the mode does what the
//! paper does, and without a prediction either it keeps the size.
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

use terrace_core::units::Time;

use crate::curve::Curve;
use crate::inputs::{Action, Interval, Loss, MARGIN, Mode, Prediction, Summary, TunerConfig, Window, percentile_95};

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
/// The share of windows that may exceed the target: the rest of 95 in 100.
const BREAKS: f64 = 0.05;
/// For this many rests the size that held is not undercut if the percentile allows the break: 20 s, with the paper's interval.
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
    cooldown: u32,
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
            cooldown: 0,
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

    /// Takes in a window, with what a database predicts for it if one was asked, and decides. Returns the share from now on. A prediction that is not
    /// trusted is entered and not gone by: what is observed decides then in either mode, and where nothing is observed everything is to be fast.
    pub fn decide(&mut self, window: &Window, asked: Option<&Prediction>) -> f64 {
        let prediction = asked.filter(|prediction| prediction.trusted);
        let seconds = window.length.as_secs_f64();
        let began = *self
            .began
            .get_or_insert(Time::from_nanos(window.end.as_nanos().saturating_sub(window.length.as_nanos() as u64)));
        self.windows += 1;
        self.account(window, seconds);
        let (mut action, mut predicted) = (Action::Waited, None);
        if !window.idle && seconds > 0.0 {
            predicted = match prediction {
                Some(prediction) => Some(prediction.curve.loss(window.held_share)),
                None => self.expected(window.held_share),
            };
            self.learn(window, prediction);
            if self.windows > 1 {
                let distrusted = asked.is_some() && prediction.is_none();
                let share = self.next_share(window, prediction, distrusted).clamp(self.config.least_share, 1.0);
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
            in_coverage: asked.map(|prediction| prediction.covered),
            database_used: asked.map(|prediction| prediction.trusted),
            grown_share: window.growth_share + window.followed_share,
        });
        self.share
    }

    fn account(&mut self, window: &Window, seconds: f64) {
        let loss = window.loss_by_limit();
        self.sum_up(window.saved_share, seconds, loss);
        self.saved_max = self.saved_max.max(window.saved_share);
        self.running_break = match loss {
            Some(loss) if loss.total() > self.config.max_slowdown => self.running_break + 1,
            _ => 0,
        };
        self.longest_break = self.longest_break.max(self.running_break);
        self.credit +=
            loss.map_or(0.0, |loss| (self.config.max_slowdown - loss.total()) * without_loss(seconds, loss.total()));
        // What is left over of an earlier size is none of managing's own.
        if let Some(loss) = window.loss {
            self.managing = if self.windows <= 1 { loss.managing } else { f64::midpoint(self.managing, loss.managing) };
        }
    }

    /// Whether a larger size is the answer to a loss: what managing costs leaves that much less to the size, but half of the target at
    /// least, as a size does not change it.
    fn is_broken(&self, loss: Loss) -> bool {
        loss.standing > self.config.max_slowdown - self.managing.min(self.config.max_slowdown / 2.0)
    }

    /// Takes in the loss at this size, and how right the prediction was.
    fn learn(&mut self, window: &Window, prediction: Option<&Prediction>) {
        let Some(loss) = window.loss_by_limit() else { return };
        let loss = loss.standing;
        keep_latest(&mut self.seen, (window.held_share, loss));
        let predicted = prediction.map_or(0.0, |prediction| prediction.curve.loss(window.held_share));
        // With next to nothing withheld both are noise.
        if predicted >= LEAST_PREDICTED && window.held_share < 1.0 - LEAST_STEP / 2.0 {
            keep_latest(&mut self.ratios, loss / predicted);
        }
    }

    /// The loss of the size to be expected at a share, by the straight line through what was observed before; `None` before that.
    fn expected(&self, share: f64) -> Option<f64> {
        let &(held, loss) = self.seen.back()?;
        Some((loss + self.slope(held, loss) * (held - share)).max(0.0))
    }

    /// The interval of observed over predicted loss: 1 to 1 while nothing was observed.
    fn ratio(&self) -> (f64, f64) {
        if self.ratios.is_empty() {
            return (1.0, 1.0);
        }
        let low = self.ratios.iter().copied().fold(f64::INFINITY, f64::min);
        (low, self.ratios.iter().copied().fold(0.0, f64::max))
    }

    fn next_share(&mut self, window: &Window, prediction: Option<&Prediction>, distrusted: bool) -> f64 {
        let curve = prediction.map(|prediction| &prediction.curve);
        let by_observation = self.config.mode == Mode::Measured || distrusted;
        match window.loss_by_limit() {
            Some(loss) if by_observation => {
                let needed = (window.used_share + 2.0 * window.growth_share + MARGIN).min(1.0);
                // What was given back is not taken again before it could be used.
                if window.left_room && self.cooldown == 0 && needed.max(self.wall()) < self.share {
                    self.held_well = Some(self.share);
                    return needed.max(self.wall());
                }
                let growing = window.growth_share + window.followed_share >= LEAST_STEP;
                if growing && !self.is_broken(loss) {
                    // Nothing is learnt of the size while the program makes it another one: what it has just got it uses.
                    return (self.share + window.growth_share).max(needed);
                }
                self.measured(loss, curve, window).max(self.payable(window)) + window.growth_share
            }
            None if distrusted => 1.0,
            _ => curve.map_or(self.share, |curve| curve.least_share(self.config.max_slowdown)),
        }
    }

    /// Whether the percentile allows this many more windows over the target.
    fn breaks_allow(&self, more: usize) -> bool {
        let broken = self.losses.iter().filter(|&&loss| loss > self.config.max_slowdown).count();
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
        let max_slowdown = self.config.max_slowdown;
        let broken = self.losses.iter().filter(|&&loss| loss > max_slowdown).count();
        let mean = self.sums.lost[1] / self.sums.without.max(f64::MIN_POSITIVE);
        let near = broken as f64 > BREAKS * self.losses.len() as f64 || mean > AIM * max_slowdown;
        max_slowdown * if near && self.losses.len() > 2 { AIM_LOW } else { AIM }
    }

    /// The least share of which the mean could pay for all that is withheld, if it came back at once, and for moving it there.
    fn payable(&self, window: &Window) -> f64 {
        let Some(back) = window.return_seconds else { return 0.0 };
        let away = window.move_seconds.unwrap_or(0.0);
        let least = (1.0 - self.credit / back).min(1.0);
        if least >= self.share { least } else { (back + self.share * away - self.credit) / (back + away) }
    }

    fn measured(&mut self, loss: Loss, curve: Option<&Curve>, window: &Window) -> f64 {
        let (max_slowdown, held) = (self.config.max_slowdown, window.held_share);
        let withheld = 1.0 - self.share;
        let (broken, total, loss) = (self.is_broken(loss), loss.total(), loss.standing);
        if broken {
            // A break that the percentile allows is no reason to rest longer than to see what the size gone back to does.
            let allowed = self.breaks_allow(0);
            // What was out is still coming back while it rests: that is the same break.
            match (allowed, self.cooldown == 0) {
                (true, _) => self.breaks = 1,
                (false, true) => self.breaks += 1,
                (false, false) => {}
            }
            self.cooldown = (1 << self.breaks.clamp(1, 8)).min(MOST_REST);
            // The line from here to no loss at full size, met at half the target.
            let line = 1.0 - withheld * (0.5 * max_slowdown / loss).min(0.9);
            let back = self.held_well.take().filter(|well| *well > self.share + LEAST_STEP / 2.0);
            let share = back.unwrap_or(line.max(self.share + LEAST_STEP));
            self.wall = (share.min(1.0), self.windows + u64::from(self.cooldown) * WALL_RESTS);
            return share;
        }
        // What one window's target pays for moving.
        let moved = |budget: f64| {
            let pays =
                |seconds: f64| budget.max(0.0) * self.config.interval.as_secs_f64() / seconds.max(f64::MIN_POSITIVE);
            window.move_seconds.map_or(1.0, pays)
        };
        let on_its_way = LEAST_STEP.min(moved(max_slowdown));
        // Sizes that are on their way down were not held yet.
        if held <= self.share + on_its_way {
            self.held_well = Some(self.share);
        }
        if self.cooldown > 0 {
            self.cooldown -= 1;
            return self.share;
        }
        self.breaks = self.breaks.saturating_sub(u32::from(self.windows.is_multiple_of(u64::from(MOST_REST))));
        // A limit that is not reached yet was not observed; what is on its way is waited for. And what moved too fast, or managing, may
        // have cost more than the target has: no more is moved until it does not.
        if held > self.share + on_its_way || total > max_slowdown {
            return self.share;
        }
        let aim = self.aim();
        let (_, high) = self.ratio();
        let used_up = (loss / aim).clamp(0.0, 1.0);
        let [bold, careful] = STEP_OF_WITHHELD;
        let paid = |seconds: f64| max_slowdown * self.config.interval.as_secs_f64() / seconds;
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
            let by_database = curve.map_or(0.0, |curve| high * curve.loss(share));
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
            max_slowdown: self.config.max_slowdown,
        }
    }
}

/// Adds the newest of the windows by which losses and ratios are known.
fn keep_latest<T>(list: &mut VecDeque<T>, newest: T) {
    list.push_back(newest);
    if list.len() > RATIO_WINDOWS {
        list.pop_front();
    }
}

/// What a window would have taken without its loss: one that is ten times as slow did a tenth of a window's work.
fn without_loss(seconds: f64, loss: f64) -> f64 {
    seconds / (1.0 + loss)
}

#[cfg(test)]
mod tests;
