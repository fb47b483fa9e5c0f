//! State shared between threads: the loop publishes, the servers read.
//!
//! In: figures, once per period. Out: the same figures for any reader, without waiting for the loop. Must not: grow without limit.
//!
//! Readers never delay the loop: they take a reference to the published state and release the lock at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::heartbeat::Heartbeat;
use crate::protocol::{Code, Response, Verb};
use crate::rights::Right;
use crate::view::{Bins, HUNG, Happening, Heat, Point, Sizing, Status, Survey, Timeline};

/// Events kept, of some hundred bytes each.
const HAPPENINGS: usize = 2000;
/// Points of the timeline kept: a quarter of an hour at one per second.
const POINTS: usize = 900;
/// Orders that may wait for the loop, and the same number of questions that only the loop can answer.
const ORDERS: usize = 16;
/// Questions that the loop answers in one turn. Each may scan a process's memory.
const QUESTIONS_A_TURN: usize = 4;

/// An order to the loop, and where the answer goes.
pub struct Order {
    /// The verb.
    pub verb: Verb,
    /// Receives the answer.
    pub reply: Reply,
}

/// Passes the loop's answer to the server that waits for it.
pub struct Reply {
    sender: Sender<Vec<u8>>,
    waker: Arc<UnixStream>,
}

impl Reply {
    /// The answer goes through `sender` as a line; then a byte is written to `waker`.
    pub fn new(sender: Sender<Vec<u8>>, waker: Arc<UnixStream>) -> Reply {
        Reply { sender, waker }
    }

    /// Answers. The client may have disconnected.
    pub fn send(&self, response: &Response) {
        let _ = self.sender.send(response.line());
        // Full means that it is awake already.
        let _ = std::io::Write::write(&mut &*self.waker, &[1]);
    }
}

/// The queue to the loop. Orders do not wait behind questions: readers cannot delay operators.
pub struct Orders {
    orders: Receiver<Order>,
    questions: Receiver<Order>,
}

impl Orders {
    /// The work of this turn: all orders, then some questions.
    pub fn for_one_turn(&self) -> Vec<Order> {
        let mut due: Vec<Order> = self.orders.try_iter().take(ORDERS).collect();
        due.extend(self.questions.try_iter().take(QUESTIONS_A_TURN));
        due
    }
}

/// See the module's header.
pub struct Shared {
    published: Mutex<Published>,
    orders: SyncSender<Order>,
    questions: SyncSender<Order>,
    waker: Arc<UnixStream>,
    /// Whether the loop turns.
    pub heartbeat: Heartbeat,
}

#[derive(Default)]
struct Published {
    status: Arc<Status>,
    happenings: VecDeque<Happening>,
    number: u64,
    points: VecDeque<Point>,
    pictures: BTreeMap<String, Pictures>,
    managed: BTreeSet<u32>,
    survey: Option<Survey>,
}

/// What is shown of one class besides its figures.
#[derive(Clone, Default)]
pub struct Pictures {
    /// Which of its addresses are accessed.
    pub heat: Option<Arc<Heat>>,
    /// The histogram of its pages by policy score.
    pub bins: Option<Arc<Bins>>,
    /// The observations of its tuner.
    pub sizing: Option<Arc<Sizing>>,
}

/// Seconds since 1970.
pub fn wall_clock() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Shared {
    /// The shared state, the queue for the loop, and the descriptor that becomes readable on an entry.
    ///
    /// # Errors
    /// The kernel has no free socket pair.
    pub fn new() -> std::io::Result<(Arc<Shared>, Orders, UnixStream)> {
        let (reader, waker) = crate::serve::waker()?;
        let ((orders, taken_orders), (questions, taken_questions)) = (sync_channel(ORDERS), sync_channel(ORDERS));
        let heartbeat = Heartbeat::default();
        let shared = Shared { published: Mutex::default(), orders, questions, waker, heartbeat };
        Ok((Arc::new(shared), Orders { orders: taken_orders, questions: taken_questions }, reader))
    }

    fn lock(&self) -> MutexGuard<'_, Published> {
        // A panicking thread leaves no partial change: every change is one push or one assignment.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a new status and its point of the timeline.
    pub fn publish(&self, status: Status, point: Point) {
        let mut published = self.lock();
        published.status = Arc::new(status);
        if published.points.len() == POINTS {
            published.points.pop_front();
        }
        // A timeline whose classes changed starts again: its columns would belong to other classes.
        if published.points.back().is_some_and(|last| last.class_fast_bytes.len() != point.class_fast_bytes.len()) {
            published.points.clear();
        }
        published.points.push_back(point);
    }

    /// Says which processes are managed.
    pub fn publish_managed(&self, pids: BTreeSet<u32>) {
        self.lock().managed = pids;
    }

    /// The processes that are managed.
    pub fn managed(&self) -> BTreeSet<u32> {
        self.lock().managed.clone()
    }

    /// Publishes what the survey found; it is part of the next status.
    pub fn publish_survey(&self, survey: Survey) {
        self.lock().survey = Some(survey);
    }

    /// What the survey found last, if there is one.
    pub fn survey(&self) -> Option<Survey> {
        self.lock().survey.clone()
    }

    /// Publishes heat map and histogram of a class.
    pub fn publish_pictures(&self, class: &str, pictures: Pictures) {
        self.lock().pictures.insert(class.to_owned(), pictures);
    }

    /// Removes what was shown of a class that was removed or restarted.
    pub fn forget_pictures(&self, class: &str) {
        self.lock().pictures.remove(class);
    }

    /// Records an event and logs it.
    pub fn happened(&self, kind: &str, class: Option<&str>, text: impl Into<String>) {
        let text = text.into();
        let class_field = class.unwrap_or("");
        match kind {
            "fault" | "rival" => tracing::warn!(kind, class = class_field, "{text}"),
            "move" => tracing::debug!(kind, class = class_field, "{text}"),
            _ => tracing::info!(kind, class = class_field, "{text}"),
        }
        let mut published = self.lock();
        published.number += 1;
        let happening = Happening {
            number: published.number,
            time: wall_clock(),
            class: class.map(str::to_owned),
            kind: kind.to_owned(),
            text,
        };
        if published.happenings.len() == HAPPENINGS {
            published.happenings.pop_front();
        }
        published.happenings.push_back(happening);
    }

    /// The latest published status.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.lock().status)
    }

    /// The latest published status, with the current state of the loop: a hung loop publishes nothing.
    pub fn status_now(&self) -> Status {
        let mut status = Status::clone(&self.status());
        status.loop_age_seconds = self.heartbeat.age().as_secs_f64();
        if self.heartbeat.overdue().is_some() {
            status.state = HUNG.to_owned();
        }
        status
    }

    /// The latest heat maps and histograms of a class, as far as they exist.
    pub fn pictures(&self, class: &str) -> Pictures {
        self.lock().pictures.get(class).cloned().unwrap_or_default()
    }

    /// The timeline.
    pub fn timeline(&self) -> Timeline {
        let published = self.lock();
        Timeline {
            tiers: published.status.tiers.iter().map(|tier| tier.name.clone()).collect(),
            classes: published.status.classes.iter().map(|class| class.name.clone()).collect(),
            points: published.points.iter().cloned().collect(),
        }
    }

    /// The events after a number: the latest `limit` of them, oldest first.
    pub fn history(&self, after: u64, limit: usize, class: Option<&str>) -> Vec<Happening> {
        let published = self.lock();
        let wanted = published
            .happenings
            .iter()
            .rev()
            .take_while(|happening| happening.number > after)
            .filter(|happening| class.is_none() || happening.class.as_deref() == class);
        let mut found: Vec<Happening> = wanted.take(limit).cloned().collect();
        found.reverse();
        found
    }

    /// Answers from the published state; `None` for an order to the loop.
    pub fn answer(&self, verb: &Verb) -> Option<Response> {
        Some(match verb {
            Verb::Hello {} => Response::done(serde_json::json!({
                "versions": crate::protocol::VERSIONS,
                "terrace": env!("CARGO_PKG_VERSION"),
            })),
            Verb::Status {} => Response::done(self.status_now()),
            Verb::History { after, limit, class } => {
                Response::done(self.history(*after, limit.unwrap_or(200).min(HAPPENINGS), class.as_deref()))
            }
            Verb::Timeline {} => Response::done(self.timeline()),
            Verb::Heat { class } => picture(class, "heat map", self.pictures(class).heat),
            Verb::Bins { class } => picture(class, "histogram", self.pictures(class).bins),
            Verb::Sizing { class } => picture(class, "sizing curve", self.pictures(class).sizing),
            _ => return None,
        })
    }

    /// Queues an order for the loop, whose answer goes to `reply`.
    ///
    /// # Errors
    /// The response to send instead, when the queue is full.
    pub fn order(&self, verb: Verb, reply: Reply) -> Result<(), Response> {
        let queue = if verb.needs() > Right::Read { &self.orders } else { &self.questions };
        queue
            .try_send(Order { verb, reply })
            .map_err(|_| Response::failed(Code::Busy, "too many orders wait already; try again in a second"))?;
        self.wake();
        Ok(())
    }

    /// Wakes the loop.
    pub fn wake(&self) {
        // Full means that it is awake already.
        let _ = std::io::Write::write(&mut &*self.waker, &[1]);
    }
}

fn picture(class: &str, what: &str, found: Option<Arc<impl serde::Serialize>>) -> Response {
    match found {
        Some(found) => Response::done(&*found),
        None => Response::failed(Code::Unknown, format!("class {class} has no {what}: {}", why_none(what))),
    }
}

/// Why a class may have no heat map or histogram.
pub(crate) fn why_none(what: &str) -> &'static str {
    match what {
        "sizing curve" => "its goal is not tuned (see class.NAME.goal), is not running, or there is no such class",
        _ => "it is not running, or there is no such class",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn questions_keep_no_order_waiting() {
        let (shared, orders, _waker) = Shared::new().unwrap();
        let (_, waker) = UnixStream::pair().unwrap();
        let (sender, _answers) = std::sync::mpsc::channel();
        let waker = Arc::new(waker);
        let order = |verb| shared.order(verb, Reply::new(sender.clone(), Arc::clone(&waker)));
        while order(Verb::Explain { pid: 1, address: None }).is_ok() {}
        order(Verb::Pause { class: None }).unwrap();
        let due = orders.for_one_turn();
        assert_eq!(due[0].verb, Verb::Pause { class: None });
        assert_eq!(due.len(), 1 + QUESTIONS_A_TURN);
    }

    #[test]
    fn the_status_says_that_the_loop_hangs() {
        let (shared, _orders, _waker) = Shared::new().unwrap();
        let status = Status { state: "running".to_owned(), ..Status::default() };
        shared.publish(status, Point::default());
        shared.heartbeat.beat(Duration::from_secs(60));
        assert_eq!(shared.status_now().state, "running");
        shared.heartbeat.beat(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        let status = shared.status_now();
        assert!(status.state == "hung" && status.loop_age_seconds >= 0.015, "{status:?}");
    }
}
