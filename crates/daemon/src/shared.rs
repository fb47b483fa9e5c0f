//! What the threads share: the loop publishes, the socket and the page read.
//!
//! In: figures, once a period. Out: the same, to anyone who asks, without waiting for the loop. Must not: grow without bound.
//!
//! The loop is never kept waiting: readers take a counted reference to what was published and let go of the lock at once.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::protocol::{Code, Response, Verb};
use crate::view::{Bins, Happening, Heat, Point, Sizing, Status, Timeline};

/// Happenings kept: some hundred bytes each.
const HAPPENINGS: usize = 2000;
/// Points of the timeline kept; at one a second a quarter of an hour.
const POINTS: usize = 900;
/// Orders that may wait for the loop.
const ORDERS: usize = 16;

/// An order to the loop, and where the answer goes.
pub struct Order {
    /// What is to be done.
    pub verb: Verb,
    /// Takes the answer.
    pub reply: Sender<Response>,
}

/// See the module's header.
pub struct Shared {
    published: Mutex<Published>,
    orders: SyncSender<Order>,
    waker: UnixStream,
}

#[derive(Default)]
struct Published {
    status: Arc<Status>,
    happenings: VecDeque<Happening>,
    number: u64,
    points: VecDeque<Point>,
    pictures: BTreeMap<String, Pictures>,
}

/// What is shown of one class beside its figures.
#[derive(Clone, Default)]
pub struct Pictures {
    /// Where its memory is used.
    pub heat: Option<Arc<Heat>>,
    /// How its pages spread over what its policy ranks them by.
    pub bins: Option<Arc<Bins>>,
    /// What its tuner knows.
    pub sizing: Option<Arc<Sizing>>,
}

/// Seconds since 1970.
pub fn wall_clock() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Shared {
    /// The shared state, the orders as the loop takes them, and what becomes readable when there is one.
    ///
    /// # Errors
    /// When the kernel gives no pair of sockets.
    pub fn new() -> std::io::Result<(Arc<Shared>, Receiver<Order>, UnixStream)> {
        let (reader, waker) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (orders, taken) = sync_channel(ORDERS);
        Ok((Arc::new(Shared { published: Mutex::default(), orders, waker }), taken, reader))
    }

    fn lock(&self) -> MutexGuard<'_, Published> {
        // Whoever panicked held nothing half changed: every change is one push or one assignment.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a new status and its point of the timeline.
    pub fn publish(&self, status: Status, point: Point) {
        let mut published = self.lock();
        published.status = Arc::new(status);
        if published.points.len() == POINTS {
            published.points.pop_front();
        }
        // A timeline whose classes changed begins anew: its columns would mean other classes.
        if published.points.back().is_some_and(|last| last.class_fast_bytes.len() != point.class_fast_bytes.len()) {
            published.points.clear();
        }
        published.points.push_back(point);
    }

    /// Publishes the pictures of a class.
    pub fn publish_pictures(&self, class: &str, pictures: Pictures) {
        self.lock().pictures.insert(class.to_owned(), pictures);
    }

    /// Takes away what was shown of a class that is there no more, or begins anew.
    pub fn forget_pictures(&self, class: &str) {
        self.lock().pictures.remove(class);
    }

    /// Enters something that happened, and logs it.
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

    /// The latest status.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.lock().status)
    }

    /// The latest pictures of a class; those there are none of are left out.
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

    /// What happened after a number: the latest `limit` of it, oldest first.
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

    /// Answers what can be answered from what was published; `None` for an order to the loop.
    pub fn answer(&self, verb: &Verb) -> Option<Response> {
        Some(match verb {
            Verb::Hello {} => Response::done(serde_json::json!({
                "versions": crate::protocol::VERSIONS,
                "terrace": env!("CARGO_PKG_VERSION"),
            })),
            Verb::Status {} => Response::done(&*self.status()),
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

    /// Gives the loop an order and waits for its answer.
    pub fn order(&self, verb: Verb) -> Response {
        /// The loop may be busy with a walk or with moves; it looks for orders several times a second otherwise.
        const PATIENCE: Duration = Duration::from_secs(25);
        let (reply, answer) = std::sync::mpsc::channel();
        if self.orders.try_send(Order { verb, reply }).is_err() {
            return Response::failed(Code::Busy, "too many orders wait already; try again in a second");
        }
        self.wake();
        answer
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| Response::failed(Code::Busy, "the daemon is busy and has not answered; try again"))
    }

    /// Wakes the loop.
    pub fn wake(&self) {
        // Full means that it is awake already.
        let _ = std::io::Write::write(&mut &self.waker, &[1]);
    }
}

fn picture(class: &str, what: &str, found: Option<Arc<impl serde::Serialize>>) -> Response {
    match found {
        Some(found) => Response::done(&*found),
        None => Response::failed(Code::Unknown, format!("class {class} has no {what}: {}", why_none(what))),
    }
}

/// Why a class may have no picture of a kind.
pub(crate) fn why_none(what: &str) -> &'static str {
    match what {
        "sizing curve" => "it has no target (see class.NAME.tau), is not running, or there is no such class",
        _ => "it is not running, or there is no such class",
    }
}
