//! From request to outcome: the request of a policy, the governor's admission, the result.
//!
//! In: nothing. Out: the types [`MoveRequest`], [`Rejection`], [`Plan`], [`Move`], [`Outcome`]. Must not: judge.

use crate::units::{PageId, TierId};

/// Why a page should move. The policy states it, the ledger counts by it, `explain` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Used too rarely for the memory it occupies.
    Cold,
    /// Its program sleeps, and loses nothing by it.
    Asleep,
    /// Used often enough to deserve faster memory.
    Hot,
    /// Neither hot nor cold, but the space is over its limit of fast memory.
    OverLimit,
    /// Makes room for a hotter page.
    MakeRoom,
    /// Prefetch: its neighbours came back, so it is expected to be used next.
    Prefetch,
    /// Terrace is leaving and undoes its move.
    Drain,
    /// Page size: one huge page holds hot and cold pieces, or all pieces are hot.
    PageSize,
    /// Inside: one of a few huge pages of a region that are split so that use shows page by page, or one more where that paid.
    Inside,
}

impl Reason {
    /// The reason in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Cold => "cold",
            Reason::Asleep => "asleep",
            Reason::Hot => "hot",
            Reason::OverLimit => "over_limit",
            Reason::MakeRoom => "make_room",
            Reason::Prefetch => "prefetch",
            Reason::Drain => "drain",
            Reason::PageSize => "page_size",
            Reason::Inside => "inside",
        }
    }
}

/// What to do with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Put it into this tier.
    MoveTo(TierId),
    /// Map its block by 4 KiB entries.
    Split,
    /// Map its block by one 2 MiB entry.
    Collapse,
}

impl Action {
    /// Whether it changes how a block is mapped, and moves nothing.
    pub const fn remaps(self) -> bool {
        matches!(self, Action::Split | Action::Collapse)
    }
}

/// One request of a policy. A page of a huge block stands for its whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveRequest {
    /// The page.
    pub page: PageId,
    /// What to do with it.
    pub action: Action,
    /// Why.
    pub reason: Reason,
    /// The page that takes its place. In an exchange the request for that page follows at once, or after other requests that leave for it.
    /// All of them are admitted, or none; see [`MoveRequest::instead_of`].
    pub instead_of: Option<PageId>,
}

impl MoveRequest {
    /// A single request.
    pub const fn new(page: PageId, action: Action, reason: Reason) -> MoveRequest {
        MoveRequest { page, action, reason, instead_of: None }
    }

    /// The same as one side of an exchange: this page leaves, and `page` takes its place. The request for `page` must follow, directly or
    /// after further requests instead of the same page. They are admitted together, or rejected together and counted once. Otherwise a page
    /// could leave for another that never arrives, or could not arrive because another did not leave.
    #[must_use]
    pub const fn instead_of(self, page: PageId) -> MoveRequest {
        MoveRequest { instead_of: Some(page), ..self }
    }
}

/// A policy's requests, best first, up to a limit.
#[derive(Clone, Debug, Default)]
pub struct MoveRequests {
    list: Vec<MoveRequest>,
    limit: usize,
}

impl MoveRequests {
    /// Room for `limit` requests.
    pub fn with_limit(limit: usize) -> MoveRequests {
        MoveRequests { list: Vec::new(), limit }
    }

    /// Adds a request. Returns whether there is room for more.
    pub fn push(&mut self, page: PageId, action: Action, reason: Reason) -> bool {
        if self.list.len() < self.limit {
            self.list.push(MoveRequest::new(page, action, reason));
        }
        self.list.len() < self.limit
    }

    /// Requests a move to `tier`. Returns whether there is room for more.
    pub fn move_to(&mut self, page: PageId, tier: TierId, reason: Reason) -> bool {
        self.push(page, Action::MoveTo(tier), reason)
    }

    /// Requests so far.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether nothing is requested.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Deals those from `first` to `second` and those from `second` on out in turn, so that a plan that is cut short has some of both.
    pub fn alternate(&mut self, first: usize, second: usize) {
        let mut later = self.list.split_off(second).into_iter();
        for request in self.list.split_off(first) {
            self.list.push(request);
            self.list.extend(later.next());
        }
        self.list.extend(later);
    }

    /// Requests an exchange: `leaving` go to `away`, and `coming` comes to `tier` in their place, all or none. Nothing is added unless all
    /// fit. Returns whether they were added.
    pub fn exchange(&mut self, leaving: &[PageId], away: TierId, coming: PageId, tier: TierId) -> bool {
        if self.left() <= leaving.len() {
            return false;
        }
        let leave = |page: &PageId| MoveRequest::new(*page, Action::MoveTo(away), Reason::MakeRoom).instead_of(coming);
        self.list.extend(leaving.iter().map(leave));
        self.list.push(MoveRequest::new(coming, Action::MoveTo(tier), Reason::Hot));
        true
    }

    /// How many more requests fit.
    pub fn left(&self) -> usize {
        self.limit - self.list.len()
    }

    /// The requests added, best first.
    pub fn as_slice(&self) -> &[MoveRequest] {
        &self.list
    }

    /// The requests, best first.
    pub fn into_vec(self) -> Vec<MoveRequest> {
        self.list
    }
}

/// One item of a plan: a page, or a whole huge block by its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The first page.
    pub page: PageId,
    /// How many consecutive pages move as one: 1, or 512.
    pub pages: u32,
    /// Its current tier.
    pub from: TierId,
    /// The action.
    pub action: Action,
    /// The reason.
    pub reason: Reason,
}

/// The admitted moves: carry them out in this order, then answer with one outcome per move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// A sequence number from 1, which the ledger refers to.
    pub number: u64,
    /// The moves.
    pub moves: Vec<Move>,
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The page is in another tier than the request assumed, is gone, or is already moving.
    Stale,
    /// A move of this page failed for good.
    Pinned,
    /// It moved a short while ago.
    Cooldown,
    /// The destination, or the limit of fast memory, has no room.
    NoRoom,
    /// The space is at its floor.
    Floor,
    /// The space is at its ceiling.
    Ceiling,
    /// Page-outs are stopped: refaults cost too much, or the slow tier saves too little.
    Throttled,
}

impl Rejection {
    /// The reason in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Rejection::Stale => "stale",
            Rejection::Pinned => "pinned",
            Rejection::Cooldown => "cooldown",
            Rejection::NoRoom => "no_room",
            Rejection::Floor => "floor",
            Rejection::Ceiling => "ceiling",
            Rejection::Throttled => "throttled",
        }
    }
}

/// Why a move did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The kernel refused, with this errno.
    Errno(i32),
    /// The kernel accepted the request, but the page did not move: in use, shared, or dirty again at once.
    Stayed,
    /// The destination was full.
    NoRoom,
    /// The page, or the whole process, was gone.
    Gone,
    /// It was in swap already, or is there now, by somebody else's doing: the program itself or the kernel put it there. Terrace neither
    /// counts it as moved nor brings it back.
    ByOthers,
    /// Its contents do not compress, so that compressed swap would save nothing.
    Incompressible,
    /// The block must stay huge: it is shared by a fork, locked, pinned, under userfaultfd, of hugetlb or of a file. It may still move whole.
    Whole,
    /// A dry run: the mover only reports what it would do.
    DryRun,
}

impl Failure {
    /// Whether another try for this page is useless: the kernel says that it may not, or cannot, be moved. This includes a dry run, which
    /// then counts each page once and thus shows how much would have moved.
    pub const fn is_permanent(self) -> bool {
        // EPERM 1, EACCES 13, EINVAL 22: see move_pages(2), process_madvise(2).
        matches!(self, Failure::DryRun | Failure::Errno(1 | 13 | 22))
    }

    /// Whether the kernel says that there is no page at the address: ENOENT 2 if none is present, EFAULT 14 if nothing is mapped, or the
    /// zero page (move_pages(2)). Not [`Failure::Gone`]: that page may be elsewhere.
    pub const fn is_absence(self) -> bool {
        matches!(self, Failure::Errno(2 | 14))
    }

    /// The failure in reports: the errno's symbol if it has one.
    pub fn name(self) -> String {
        match self {
            Failure::Stayed => "stayed".to_owned(),
            Failure::NoRoom => "no_room".to_owned(),
            Failure::Gone => "gone".to_owned(),
            Failure::ByOthers => "by_others".to_owned(),
            Failure::Incompressible => "incompressible".to_owned(),
            Failure::Whole => "left_whole".to_owned(),
            Failure::DryRun => "dry_run".to_owned(),
            Failure::Errno(errno) => match errno {
                1 => "EPERM".to_owned(),
                2 => "ENOENT".to_owned(),
                3 => "ESRCH".to_owned(),
                4 => "EINTR".to_owned(),
                5 => "EIO".to_owned(),
                7 => "E2BIG".to_owned(),
                11 => "EAGAIN".to_owned(),
                12 => "ENOMEM".to_owned(),
                13 => "EACCES".to_owned(),
                14 => "EFAULT".to_owned(),
                16 => "EBUSY".to_owned(),
                19 => "ENODEV".to_owned(),
                22 => "EINVAL".to_owned(),
                28 => "ENOSPC".to_owned(),
                95 => "EOPNOTSUPP".to_owned(),
                other => format!("errno_{other}"),
            },
        }
    }
}

/// The result of one move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The move from the plan.
    pub item: Move,
    /// How many of its pages arrived; fewer than `item.pages` if part of a huge block moved.
    pub done: u32,
    /// Why the others did not move, if any did not.
    pub failure: Option<Failure>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_two_kinds_alternate_and_none_is_lost() {
        let mut requests = MoveRequests::with_limit(16);
        for page in 0..7 {
            let to = if page < 5 { TierId(1) } else { TierId::FAST };
            requests.move_to(PageId(page), to, Reason::Cold);
        }
        requests.alternate(1, 5);
        let order: Vec<u32> = requests.as_slice().iter().map(|request| request.page.0).collect();
        assert_eq!(order, [0, 1, 5, 2, 6, 3, 4], "what came first stays first");
        requests.alternate(0, 1);
        assert_eq!(requests.len(), 7);
    }
}
