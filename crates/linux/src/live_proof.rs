//! Proof in place: whether managing a running program makes it faster or slower, by a measure of its own.
//!
//! In: a manager, again and again; a [`Metric`]. Out: whether to hold the manager, the gain with its interval, [`News`] for who drives it. Must
//! not: let the manager wait for a reading, or call chance harm: `terrace_tuning::Trial` has the order and the judgement.
//!
//! In a window left alone no accessed bit is cleared and no page moves; pages stay where they are. So windows compare *managing* with not
//! managing. What memory that lies in slow tiers already costs is the same in both, except that pages which went out in a window cost
//! when they come back, in whichever window that is: the first fifth of each window does not count, which takes most of it.
//!
//! If harm is shown the manager stays held: nothing moves, no bit is cleared. After [`FREEZE`], and twice as long after each further time, a new
//! trial begins, as programs change.
//!
//! As long as the metric cannot be read the program is managed as without proof, and it is tried again each window.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use terrace_core::units::Time;
use terrace_tuning::{Arm, Trial, TrialConfig};

use crate::manager::Manager;
use crate::metric::own::{Counted, Counters, OwnCounter, Uncounted, instructions_work};
use crate::metric::read::{DEADLINE, ReadError, read};
use crate::metric::{Meaning, Metric, Source};

/// How long management rests after harm was shown for the first time (own-policy.md, section 12: 10, 20, 40 minutes).
pub const FREEZE: Duration = Duration::from_secs(600);
/// The longest rest.
const LONGEST_FREEZE: Duration = Duration::from_secs(24 * 3600);
/// The part of a window that does not count, as the one before still has an effect.
const SETTLING: f64 = 0.2;
/// Readings of a figure that is no sum, within what counts of a window.
const READINGS: u32 = 8;
/// The least processor time in a window of which shares are made: fifty ticks of the kernel's clock.
const LEAST_SECONDS: f64 = 0.5;
/// A window that lasts longer than this part of its length is of no use: Terrace was stopped meanwhile, as by Ctrl-Z, and managed nothing.
const LATEST: f64 = 1.5;
/// The least time between two looks.
const STEP: Duration = Duration::from_millis(100);

/// What happened, for people.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// The metric cannot be read, for this reason. Told once until it can be.
    Unmeasured(String),
    /// It can be read again.
    Measured,
    /// Harm is shown: the loss, its interval, and after how many windows; management rests so long.
    Harm {
        /// The gain, which is negative.
        gain: f64,
        /// Its interval.
        interval: (f64, f64),
        /// Windows compared.
        windows: u64,
        /// How long management rests.
        rest: Duration,
    },
    /// The rest is over, and a new trial begins.
    Thawed,
}

/// Where a proof stands.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ProofState {
    /// The metric, as given.
    pub metric: String,
    /// Seed of the order of windows.
    pub seed: u64,
    /// Windows compared so far, in all trials.
    pub windows: u64,
    /// Windows that could not be measured.
    pub discarded: u64,
    /// How much faster the program is managed: 0.05 is 5 %.
    pub gain: Option<f64>,
    /// Lower end of the interval, 90 % over all looks together.
    pub gain_low: Option<f64>,
    /// Upper end.
    pub gain_high: Option<f64>,
    /// Whether management rests because it was shown to harm.
    pub frozen: bool,
    /// How often that was.
    pub freezes: u32,
    /// Why the metric cannot be read, if so.
    pub error: Option<String>,
    /// The logarithm of the speed managed over the speed left alone of each pair, of the last trial's last stretch.
    #[serde(default)]
    pub differences: Vec<f64>,
}

/// What reads the metric.
enum Eye {
    /// A thread of its own, since a reading may take seconds.
    Other(Reader),
    Own(OwnCounter),
}

struct Reader {
    ask: Option<Sender<()>>,
    answers: Receiver<Answer>,
    asked: Option<Instant>,
    thread: Option<JoinHandle<()>>,
}

type Answer = (Instant, Result<f64, Unmeasured>);

/// Why a window says nothing.
#[derive(Debug, thiserror::Error)]
enum Unmeasured {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Counted(#[from] std::io::Error),
    #[error("its reader ended")]
    NoReader,
    #[error("it was not read in time")]
    Late,
    #[error("it went back from {first} to {last}; write gauge= before it if it counts nothing")]
    Backwards { first: f64, last: f64 },
}

/// A reading of either kind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sample {
    Number(f64),
    Counters(Counters),
}

/// The window at hand.
#[derive(Debug, Default)]
struct Window {
    first: Option<(Instant, Sample)>,
    last: Option<(Instant, Sample)>,
    sum: f64,
    count: u32,
    /// Why a reading failed, for people.
    failure: Option<String>,
    /// Whether it is one of the trial's.
    counts: bool,
}

/// See the module's header.
pub struct LiveProof {
    metric: Metric,
    length: Duration,
    config: TrialConfig,
    trial: Trial,
    /// Windows and failed ones of trials that are over.
    before: (u64, u64),
    eye: Eye,
    /// When the window began, and when to read next; the window begins with the first look.
    began: Option<Time>,
    read_at: Time,
    /// Whether the last reading of the window was asked for.
    asked_last: bool,
    window: Window,
    /// Why the metric cannot be read at present.
    error: Option<String>,
    /// Whether it was read at least once.
    seen: bool,
    told: bool,
    /// Until when a metric that was never read may be missing.
    patience: Duration,
    first_look: Option<Time>,
    frozen_until: Option<Time>,
    freezes: u32,
}

/// Why there can be no proof.
#[derive(Debug, thiserror::Error)]
pub enum NoProof {
    /// Instructions are asked for, and cannot be counted.
    #[error(transparent)]
    Uncounted(#[from] Uncounted),
    /// A metric is read in a thread.
    #[error("no thread: {0}")]
    Thread(std::io::Error),
}

impl LiveProof {
    /// A proof with windows of this length, of which the share `left_alone` is left alone after the first pairs, a half at most. A loss up to
    /// `allowed_loss` is no harm. For so long after the first look a metric may be missing without complaint: a program that has just started writes none yet.
    ///
    /// # Errors
    /// When the machine cannot count what is asked for.
    pub fn new(
        metric: Metric,
        length: Duration,
        left_alone: f64,
        allowed_loss: f64,
        seed: u64,
        patience: Duration,
    ) -> Result<LiveProof, NoProof> {
        let works = instructions_work();
        let mut metric = metric;
        let eye = match (&metric.source, works) {
            (Source::Instructions, Err(why)) => return Err(why.into()),
            (Source::Instructions | Source::Auto, Ok(())) => {
                metric.source = Source::Instructions;
                Eye::Own(OwnCounter::new(Counted::Instructions))
            }
            (Source::Processor | Source::Auto, _) => {
                metric.source = Source::Processor;
                Eye::Own(OwnCounter::new(Counted::Time))
            }
            _ => Eye::Other(Reader::start(metric.clone()).map_err(NoProof::Thread)?),
        };
        let config = TrialConfig { allowed_loss, ..TrialConfig::new(seed) }.with_control(left_alone);
        Ok(LiveProof {
            metric,
            length,
            config,
            trial: Trial::new(config),
            before: (0, 0),
            eye,
            began: None,
            read_at: Time::ZERO,
            asked_last: false,
            window: Window::default(),
            error: None,
            seen: false,
            told: false,
            patience,
            first_look: None,
            frozen_until: None,
            freezes: 0,
        })
    }

    /// Whether the program is to be managed now.
    pub fn manages(&self) -> bool {
        if self.frozen_until.is_some() {
            return false;
        }
        // A metric that cannot be read is no reason to manage less.
        !self.seen || self.error.is_some() || self.trial.arm() == Arm::Treated
    }

    /// When it wants to look next.
    pub fn due(&self, now: Time) -> Time {
        let next = match self.frozen_until {
            Some(until) => until,
            None if self.began.is_none() || self.waits() => now + STEP,
            None => self.read_at.min(self.end(now)),
        };
        next.max(now + STEP)
    }

    fn end(&self, now: Time) -> Time {
        self.began.unwrap_or(now) + self.length
    }

    fn waits(&self) -> bool {
        matches!(&self.eye, Eye::Other(reader) if reader.asked.is_some())
    }

    /// Looks: reads the metric if that is due, and ends the window. Whether to hold the manager, [`LiveProof::manages`] says afterwards.
    pub fn look(&mut self, manager: &Manager) -> Vec<News> {
        let mut news = Vec::new();
        self.advance(manager.now(), manager, &mut news);
        news
    }

    fn advance(&mut self, now: Time, manager: &Manager, news: &mut Vec<News>) {
        if let Some(until) = self.frozen_until {
            if now < until {
                return;
            }
            self.frozen_until = None;
            self.begin_trial();
            self.begin_window(now);
            news.push(News::Thawed);
        }
        self.first_look.get_or_insert(now);
        if self.began.is_none() {
            self.begin_window(now);
        }
        if let Some((at, answer)) = self.answer() {
            self.take(at, answer);
        }
        if self.waits() {
            return;
        }
        let over = now >= self.end(now);
        if let Some(failure) = self.window.failure.clone() {
            // Told and acted on at once; the window is of no use, and its end is soon enough for the next try.
            self.note(now, Some(failure), news);
            self.read_at = self.end(now);
        }
        if over && (self.asked_last || self.window.failure.is_some()) {
            self.end_window(now, news);
            return;
        }
        if !over && now < self.read_at {
            return;
        }
        match &mut self.eye {
            Eye::Own(counter) => {
                let sample = counter.read(manager.processes().map(|(_, process, _)| process));
                self.take(Instant::now(), sample.map(Sample::Counters).map_err(Unmeasured::from));
                if over {
                    self.end_window(now, news);
                }
            }
            Eye::Other(reader) => {
                reader.ask();
                self.asked_last = over;
            }
        }
        if !over {
            self.plan_reading(now);
        }
    }

    fn begin_window(&mut self, now: Time) {
        self.began = Some(now);
        // The window in which the metric is first read, or again, is no part of the trial: it is managed in any case.
        self.window = Window { counts: self.seen && self.error.is_none(), ..Window::default() };
        self.asked_last = false;
        self.read_at = now + self.length.mul_f64(SETTLING);
        tracing::info!(
            "proof: window begins, the program is {}",
            if self.manages() { "managed" } else { "left alone" }
        );
    }

    /// The next reading within the window, if there is one: sums need none between the first and the last.
    fn plan_reading(&mut self, now: Time) {
        let end = self.end(now);
        let several = self.metric.meaning != Meaning::Counter && matches!(self.eye, Eye::Other(_));
        self.read_at = match several {
            true => (now + self.length.mul_f64(1.0 - SETTLING) / READINGS).min(end),
            false => end,
        };
    }

    fn answer(&mut self) -> Option<(Instant, Result<Sample, Unmeasured>)> {
        let Eye::Other(reader) = &mut self.eye else { return None };
        reader.answer().map(|(at, answer)| (at, answer.map(Sample::Number)))
    }

    fn take(&mut self, at: Instant, answer: Result<Sample, Unmeasured>) {
        match answer {
            Ok(sample) => {
                self.window.first.get_or_insert((at, sample));
                self.window.last = Some((at, sample));
                if let Sample::Number(number) = sample {
                    self.window.sum += number;
                    self.window.count += 1;
                }
            }
            Err(failure) => self.window.failure = Some(failure.to_string()),
        }
    }

    fn end_window(&mut self, now: Time, news: &mut Vec<News>) {
        let (speed, failure) = match (self.window.failure.take(), self.window.speed(&self.metric)) {
            (None, Ok(speed)) => (speed, None),
            (None, Err(failure)) => (None, Some(failure.to_string())),
            (failure, _) => (None, failure),
        };
        self.note(now, failure, news);
        let lasted = self.began.map_or(Duration::ZERO, |began| now.since(began));
        if self.window.counts {
            self.trial.finish(speed.filter(|_| lasted <= self.length.mul_f64(LATEST) + DEADLINE));
        }
        if self.trial.harms()
            && let Some(known) = self.trial.gain()
            && let Some(interval) = known.interval
        {
            let rest = (FREEZE * 2u32.saturating_pow(self.freezes)).min(LONGEST_FREEZE);
            self.freezes += 1;
            self.frozen_until = Some(now + rest);
            news.push(News::Harm { gain: known.gain, interval, windows: self.trial.windows(), rest });
        }
        self.begin_window(now);
    }

    /// Enters whether the metric could be read, and tells it once.
    fn note(&mut self, now: Time, failure: Option<String>, news: &mut Vec<News>) {
        match failure {
            Some(failure) => {
                let tried = now.since(self.first_look.unwrap_or(now));
                if !self.told && (self.seen || tried >= self.patience) {
                    self.told = true;
                    news.push(News::Unmeasured(failure.clone()));
                }
                self.error = Some(failure);
            }
            None => {
                self.seen = true;
                self.error = None;
                if std::mem::take(&mut self.told) {
                    news.push(News::Measured);
                }
            }
        }
    }

    fn begin_trial(&mut self) {
        self.before.0 += self.trial.windows();
        self.before.1 += self.trial.discarded();
        // Another order than before.
        let seed = self.config.seed.wrapping_add(u64::from(self.freezes));
        self.trial = Trial::new(TrialConfig { seed, ..self.config });
    }

    /// Somebody wants the program managed though harm was shown: the rest is over, and a new trial begins with the next look.
    pub fn resume(&mut self) {
        self.frozen_until = self.frozen_until.map(|_| Time::ZERO);
    }

    /// The current window is invalid: management was interrupted within it. It begins again with the next look.
    pub fn interrupt(&mut self) {
        self.began = None;
    }

    /// The length of a window.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Where it stands.
    pub fn state(&self) -> ProofState {
        let known = self.trial.gain();
        let interval = known.and_then(|known| known.interval);
        let metric = match (&self.metric.source, self.metric.text.as_str()) {
            (Source::Instructions, "auto") => "auto (instructions)".to_owned(),
            (Source::Processor, "auto") => "auto (cpu)".to_owned(),
            (_, text) => text.to_owned(),
        };
        ProofState {
            metric,
            seed: self.config.seed,
            windows: self.before.0 + self.trial.windows(),
            discarded: self.before.1 + self.trial.discarded(),
            gain: known.map(|known| known.gain),
            gain_low: interval.map(|(low, _)| low),
            gain_high: interval.map(|(_, high)| high),
            frozen: self.frozen_until.is_some(),
            freezes: self.freezes,
            error: self.error.clone(),
            differences: self.trial.differences().to_vec(),
        }
    }

    /// Whether the program is shown to lose no more than is allowed.
    pub fn is_harmless(&self) -> bool {
        self.trial.is_harmless()
    }
}

impl Window {
    /// What the program did, more is better. `None` if it did nothing; an error if it was not measured.
    fn speed(&self, metric: &Metric) -> Result<Option<f64>, Unmeasured> {
        let ((first_at, first), (last_at, last)) = self.first.zip(self.last).ok_or(Unmeasured::Late)?;
        let seconds = last_at.duration_since(first_at).as_secs_f64();
        match (first, last) {
            _ if seconds <= 0.0 => Err(Unmeasured::Late),
            (Sample::Counters(first), Sample::Counters(last)) => {
                if metric.source == Source::Instructions {
                    return Ok(Some((last.instructions - first.instructions) / seconds));
                }
                let (user, other) = (last.user_seconds - first.user_seconds, last.other_seconds - first.other_seconds);
                // A program that sleeps says nothing.
                Ok((user + other >= LEAST_SECONDS.min(0.2 * seconds)).then(|| user / (user + other)))
            }
            (Sample::Number(first), Sample::Number(last)) => match metric.meaning {
                Meaning::Counter if last < first => Err(Unmeasured::Backwards { first, last }),
                Meaning::Counter => Ok(Some((last - first) / seconds)),
                Meaning::Gauge => Ok(Some(self.sum / f64::from(self.count))),
                Meaning::Cost => Ok(Some(f64::from(self.count) / self.sum)),
            },
            _ => Err(Unmeasured::Late),
        }
    }
}

impl Reader {
    fn start(metric: Metric) -> std::io::Result<Reader> {
        let (ask, asked) = channel::<()>();
        let (tell, answers) = channel();
        let thread = std::thread::Builder::new().name("metric".to_owned()).spawn(move || {
            while asked.recv().is_ok() {
                let answer = read(&metric).map_err(Unmeasured::from);
                if tell.send((Instant::now(), answer)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Reader { ask: Some(ask), answers, asked: None, thread: Some(thread) })
    }

    fn ask(&mut self) {
        self.asked = self.ask.as_ref().filter(|ask| ask.send(()).is_ok()).map(|_| Instant::now());
    }

    /// The answer, if it has come, or that none will.
    fn answer(&mut self) -> Option<Answer> {
        self.asked?;
        let answer = match self.answers.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => (Instant::now(), Err(Unmeasured::NoReader)),
        };
        self.asked = None;
        Some(answer)
    }
}

impl Drop for Reader {
    /// A command that runs is waited for, so that none outlives the run; a name that does not resolve is left to itself.
    fn drop(&mut self) {
        self.ask = None;
        let until = Instant::now() + DEADLINE * 2;
        let mut waiting = self.asked.is_some();
        while waiting {
            match self.answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(_) => waiting = false,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return,
            }
        }
        if let Some(thread) = self.thread.take() {
            // It can only be blocked on us, and we no longer ask.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(of: &[Sample]) -> Window {
        let mut window = Window::default();
        let began = Instant::now();
        for (index, sample) in of.iter().enumerate() {
            window.first.get_or_insert((began, *sample));
            window.last = Some((began + Duration::from_secs(2) * index as u32, *sample));
            if let Sample::Number(number) = sample {
                window.sum += number;
                window.count += 1;
            }
        }
        window
    }

    fn metric(text: &str) -> Metric {
        text.parse().unwrap()
    }

    #[test]
    fn the_speed_of_a_window_is_growth_level_or_the_inverse_of_a_price() {
        let numbers = [Sample::Number(10.0), Sample::Number(20.0), Sample::Number(60.0)];
        assert_eq!(window(&numbers).speed(&metric("file:/x")).unwrap(), Some(12.5), "50 in four seconds");
        assert_eq!(window(&numbers).speed(&metric("gauge=file:/x")).unwrap(), Some(30.0));
        assert_eq!(window(&numbers).speed(&metric("cost=file:/x")).unwrap(), Some(1.0 / 30.0));
        let back = window(&[Sample::Number(10.0), Sample::Number(3.0)]).speed(&metric("file:/x"));
        assert!(back.is_err_and(|why| why.to_string().contains("from 10 to 3")));
        assert!(window(&numbers[..1]).speed(&metric("file:/x")).is_err(), "one reading is no window");
        assert!(window(&[]).speed(&metric("file:/x")).is_err());
    }

    #[test]
    fn waiting_and_kernel_time_make_a_program_slower() {
        let counters = |user_seconds, other_seconds| {
            Sample::Counters(Counters { user_seconds, other_seconds, ..Counters::default() })
        };
        let speed = window(&[counters(5.0, 1.0), counters(6.8, 1.2)]).speed(&metric("cpu")).unwrap().unwrap();
        assert!((speed - 0.9).abs() < 1e-9, "{speed}");
        let slept = window(&[counters(5.0, 1.0), counters(5.01, 1.0)]).speed(&metric("cpu"));
        assert_eq!(slept.unwrap(), None, "it slept");
    }

    #[test]
    fn a_machine_without_instructions_refuses_them_and_auto_takes_time() {
        let new = |text| LiveProof::new(metric(text), Duration::from_secs(2), 0.25, 0.0, 1, Duration::ZERO);
        match (instructions_work(), new("instructions"), new("auto").unwrap().state().metric.as_str()) {
            (Ok(()), Ok(_), "auto (instructions)") | (Err(_), Err(_), "auto (cpu)") => {}
            (works, proof, auto) => panic!("{works:?}, {:?}, {auto}", proof.err()),
        }
    }

    #[test]
    fn a_reading_comes_when_it_is_there_and_the_reader_ends_with_it() {
        let mut reader = Reader::start(metric("command:sleep 0.3; echo 5")).unwrap();
        reader.ask();
        assert!(reader.answer().is_none(), "nobody waits");
        let until = Instant::now() + DEADLINE;
        let answer = loop {
            match reader.answer() {
                Some((_, answer)) => break answer,
                None => assert!(Instant::now() < until),
            }
            std::thread::sleep(STEP);
        };
        assert_eq!(answer.unwrap(), 5.0);
        reader.ask();
        drop(reader);
    }
}
