//! The contract of a policy: pure decision code that ranks pages and never moves one.
//!
//! In: observations, outcomes, and how much room there is. Out: requests, and when to look again. Must not:
//! read a clock, keep a page that is gone, or count on a request being granted.

use std::ops::Range;
use std::time::Duration;

use crate::observation::Observations;
use crate::pages::Pages;
use crate::plan::{MoveRequest, MoveRequests, Outcome, Rejection};
use crate::prices::{Prices, ProcessorCounts};
use crate::units::{BlockId, Bytes, PageId, SpaceId, TierId, Time, Vpn};

/// Which observations a policy lives on. The driver chooses trackers by it, and refuses a policy none can serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Walks of accessed bits.
    pub scans: bool,
    /// Hardware samples of loads and stores.
    pub samples: bool,
    /// Of those, only the first thread's: what counters opened for a process id see without `inherit`. Only a simulator serves it.
    pub first_thread: bool,
    /// Hint faults.
    pub hint_faults: bool,
    /// allocations and frees of pages as they happen. A driver that cannot tell says so, and finds them when it next looks where pages are.
    pub life_cycle: bool,
    /// Counters of the 4 KiB pieces of huge pages, kept by the MMU: only a simulator can serve them.
    pub counters: bool,
    /// Hint faults of pages that the driver itself marked, so that it knows when, and on which tiers: only a simulator can serve it.
    /// A kernel shows that a page was touched and keeps the rest to itself.
    pub own_marks: bool,
    /// The future of a trace ([`Oracle`]): only a simulator can serve it.
    pub future: bool,
    /// Fast memory for everything, however little the machine has: a bound. Only a simulator can serve it; elsewhere what
    /// does not fit spills.
    pub unlimited_fast: bool,
}

/// Knows the future of a trace, for the bound that no policy without it can beat.
pub trait Oracle: Send {
    /// Adds to `found` every page that will be used from `from` until `until`, with how many accesses reach memory.
    /// In any order; no page twice; pages without any are left out.
    fn future(&mut self, from: Time, until: Time, pages: &Pages, found: &mut Vec<(PageId, u32)>);
}

/// How often to look. A policy states it again after every round and every plan ([`Policy::schedule`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cadence {
    /// When the next round of accessed bits should be read; `None` if none is wanted.
    pub scan_at: Option<Time>,
    /// Which share of the blocks that round should read and clear, in rotation: 1.0 is all of them.
    pub share: f64,
    /// Accesses per hardware sample, if samples are wanted.
    pub sampling: Option<SamplePeriods>,
    /// The hint-fault scanner, if it is wanted.
    pub hint_scan: Option<HintScan>,
}

/// How many accesses one hardware sample stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplePeriods {
    /// Loads that missed the last-level cache.
    pub loads: u32,
    /// Retired stores, cache hits included.
    pub stores: u32,
}

/// How the hint-fault scanner walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintScan {
    /// Pages made inaccessible at each step.
    pub window_pages: u64,
    /// Time between steps.
    pub period: Duration,
    /// Tiers whose pages are marked: bit k stands for tier k.
    pub tiers: u8,
}

/// What one round of accessed bits amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScanReport {
    /// Pages with memory behind them whose marks were read.
    pub pages: u64,
    /// Those of them that were accessed.
    pub accessed: u64,
    /// How long the reading and clearing took.
    pub walk: Duration,
    /// Which share of all blocks was cleared, 0 to 1: what the policy's cadence asked for, or less where a budget for watching allowed less.
    pub share: f64,
}

/// How full a tier is, in 4 KiB pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUse {
    /// Pages of the spaces under management that lie in it.
    pub used: u64,
    /// Pages it can hold for them.
    pub capacity: u64,
}

impl TierUse {
    /// Pages still free for the spaces under management.
    pub const fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }
}

/// How much fast memory a program should keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FastGoal {
    /// At most this many pages.
    Pages(u64),
    /// At most this share of its footprint, 0 to 1.
    Share(f64),
    /// As little as it can do with: everything cold leaves, and what the governor sees it cost decides how much is cold.
    Least,
}

impl FastGoal {
    /// The goal in pages for a footprint, or `None` where it is as little as will do. Where all may be fast it is no bound at all, so that
    /// only capacity bounds it: the pages there are now would make fast memory seem full whenever a page is new.
    pub fn limit(self, footprint: u64) -> Option<u64> {
        match self {
            FastGoal::Pages(pages) => Some(pages),
            FastGoal::Share(share) if share >= 1.0 => Some(u64::MAX),
            FastGoal::Share(share) => Some((footprint as f64 * share).floor() as u64),
            FastGoal::Least => None,
        }
    }
}

/// What a policy may count on when it plans. All amounts in 4 KiB pages.
#[derive(Clone, Debug)]
pub struct CapacityView<'a> {
    /// The tiers from fast to slow.
    pub tiers: &'a [TierUse],
    /// Most pages that should lie in the fastest tier, if the goal sets a number.
    pub fast_limit: Option<u64>,
    /// Pages with memory behind them in all spaces.
    pub footprint: u64,
    /// How patient to be with idle pages, from the governor's feedback: 1 at first, more after demotions that turned
    /// out to be mistakes. A policy multiplies its idle threshold by it.
    pub backoff: f64,
    /// A page that was idle for less stays: the program sweeps through its memory, and would want it back. Zero where it does not.
    pub least_idle: Duration,
    /// What pages in swap cost, where a tier is swap.
    pub swap: Option<SwapCosts>,
}

/// What it costs the program to have pages in swap: they cannot be used there. All in seconds of the program's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwapCosts {
    /// The tier that is swap.
    pub tier: TierId,
    /// A page that comes back because the program wants it.
    pub back: f64,
    /// A page that leaves alone, and a page of a block that leaves whole; 0 where that is not known.
    pub single: f64,
    /// See there.
    pub of_block: f64,
    /// A split of a huge page, and a collapse into one; 0 where that is not known.
    pub split: f64,
    /// See `split`.
    pub collapse: f64,
    /// What all of it together may cost in a second.
    pub budget: f64,
}

impl CapacityView<'_> {
    /// Pages that may still enter the fastest tier.
    pub fn fast_room(&self) -> u64 {
        let tier = self.tiers[0];
        match self.fast_limit {
            Some(limit) => limit.min(tier.capacity).saturating_sub(tier.used),
            None => tier.free(),
        }
    }

    /// Pages that should leave the fastest tier for the limit to hold.
    pub fn fast_excess(&self) -> u64 {
        let tier = self.tiers[0];
        tier.used.saturating_sub(self.fast_limit.unwrap_or(tier.capacity).min(tier.capacity))
    }

    /// The slowest tier.
    pub fn slowest(&self) -> TierId {
        TierId(self.tiers.len() as u8 - 1)
    }
}

/// Who carries moves out at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Movers {
    /// One thread, one move after the other.
    #[default]
    One,
    /// A thread for each tier, which moves pages out of it: the kernel thread a node of MEMTIS and those after it.
    EachTier,
    /// The number of threads that share the copying of each page; at least one.
    Several(u8),
    /// Nobody: a move is done at once and loads no tier. No system has it; a bound does, so that none that pays for its moves is ahead of it.
    Free,
}

/// What a policy takes the kernel, or the memory controller, beneath it to do by itself. A driver on real hardware finds
/// it so or not; the simulator models it. The default is a kernel that leaves pages where they were first placed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kernel {
    /// Reclaim moves the tail of the inactive lists one tier down (`demotion_enabled`) and is woken by the watermarks.
    pub demotion: bool,
    /// Free share of a tier that reclaim restores, in 1/10000 of it, where that is above the high watermark: 200 for TPP.
    pub demote_scale: u16,
    /// Free bytes above the high watermark that reclaim restores: room for promotions. Stated for a full-size machine.
    pub promotion_room: Bytes,
    /// Reclaim restores one more gap between watermarks above the high one: the promotion watermark of Linux 6.x.
    pub promotion_gap: bool,
    /// Reclaim is woken half that room early (Tiering-0.8's `wake_up_kswapd_early`).
    pub early_wake: bool,
    /// A promotion fails unless the fast tier has more free memory than its high watermark, and then wakes reclaim.
    pub promotion_needs_high_watermark: bool,
    /// Pages that reclaim demotes stay inaccessible, so that their next use is a hint fault (TPP; Tiering-0.8's
    /// `scan_demoted`).
    pub demoted_pages_marked: bool,
    /// A promoted page leaves its copy in slow memory until it is written or that room is wanted; its demotion until then changes a mapping
    /// and copies nothing. The page stays mapped while it is copied up, on a thread of the kernel; if it is written meanwhile it is copied
    /// again (Nomad).
    pub keeps_copies: bool,
    /// Fast memory is a direct-mapped cache of slow memory that no software sees (Optane Memory Mode).
    pub memory_mode: bool,
    /// Who carries out the policy's plans.
    pub movers: Movers,
    /// The kernel moves from its own lists, which the policy puts in order ([`KernelLists`]); the policy requests no moves. Only a live
    /// driver can serve it, with a module in the kernel; the others refuse such a policy.
    pub lists: Option<ListPlan>,
}

/// How the kernel's own page lists are to be moved from, by a policy that puts them in order and leaves the moving to the kernel.
/// Shares are of 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListPlan {
    /// Free share of fast memory that demotion restores.
    pub high_watermark: f64,
    /// Free share below which an allocation wakes demotion at once.
    pub low_watermark: f64,
    /// Time between two looks at the watermarks and the lists.
    pub period: Duration,
    /// Rear share of a list that one demotion may take.
    pub candidates: f64,
    /// Tail share of the active list that a cooling makes inactive.
    pub deactivate: f64,
}

/// What such a policy says of a page, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListMark {
    /// The page belongs at the head of its active list.
    Hot(PageId),
    /// The page belongs at the head of its inactive list.
    Cold(PageId),
    /// All counts were halved.
    Cooled,
}

/// A named figure a policy shows of its inside.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Metric {
    /// Its name in snake case, unit last.
    pub name: &'static str,
    /// Its value now.
    pub value: f64,
}

/// What a policy is, before anything has happened: who it is and what it counts on.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The name it is found by.
    pub name: &'static str,
    /// Which observations would do, best first: any one of these, of which the driver grants one ([`Setup::granted`]). One alone for most
    /// policies, and for any once it is granted.
    pub needs: Vec<Needs>,
    /// What the kernel beneath is taken to do by itself.
    pub kernel: Kernel,
    /// Whether it may ask for huge pages to be split: a driver then measures what that costs.
    pub splits: bool,
}

impl Profile {
    /// A policy of that name that lives on `needs`, above a kernel that does nothing by itself.
    pub fn new(name: &'static str, needs: Needs) -> Profile {
        Profile { name, needs: vec![needs], kernel: Kernel::default(), splits: false }
    }

    /// The same above a kernel that does this by itself.
    pub fn above(self, kernel: Kernel) -> Profile {
        Profile { kernel, ..self }
    }

    /// The same, and whether it may ask for splits of huge pages.
    pub fn splitting(self, splits: bool) -> Profile {
        Profile { splits, ..self }
    }

    /// The observations it likes best, or was granted.
    pub fn needs(&self) -> Needs {
        self.needs.first().copied().unwrap_or_default()
    }
}

/// What a driver tells a policy of its surroundings. Only what is there is news; the rest stays as it was.
#[derive(Default)]
pub struct Setup {
    /// The one of [`Profile::needs`] that the driver serves. From then on the profile has it alone.
    pub granted: Option<Needs>,
    /// What moves, splits and collapses cost on this machine: from a driver that knows it, and again whenever it has become something else
    /// ([`Input::Prices`](crate::engine::Input::Prices)).
    pub prices: Option<Prices>,
    /// The machine is a model shrunk by this factor, while times stay those of the full size: amounts that the policy states in bytes, pages
    /// or samples (a scan window, samples between two thresholds) are to be divided by it. From the simulator only.
    pub scale: Option<u32>,
    /// Each page of 4 KiB stands for a whole 2 MiB page of the full size, or for several. A page then has 512 times fewer accesses than what
    /// it stands for, and would have as many times fewer samples; so that it has as many, this many observations come in place of each
    /// hardware sample, each worth as small a part of one. A policy whose unit is the 2 MiB page takes the small page for it. With the scale
    /// or after it, from the simulator only.
    pub sample_parts: Option<u32>,
    /// The future of a trace, for a policy with [`Needs::future`].
    pub oracle: Option<Box<dyn Oracle>>,
}

/// Pages come under management, or leave it.
#[derive(Clone, Debug)]
pub enum Remap<'a> {
    /// Blocks appeared, or gained pages. Their states are fresh where the pages are new.
    Mapped(&'a [BlockId]),
    /// Pages are about to vanish from a space; after the call their ids may be given to others.
    Unmapping(SpaceId, Range<Vpn>),
}

/// What became of something the policy asked for, and what it cost. The pages' tiers are up to date already.
#[derive(Clone, Debug)]
pub enum Feedback<'a> {
    /// The round of accessed bits that the cadence asked for is complete.
    ScanDone(&'a ScanReport),
    /// Moves were carried out, or failed.
    Moved(&'a [Outcome]),
    /// A request was not granted. Counting such failures is part of some policies; requesting again at once is not.
    Rejected(&'a MoveRequest, Rejection),
    /// What the processor counted since the last such feedback: before [`Feedback::ScanDone`], and before a wake that the policy asked for,
    /// where anybody counts.
    Processor(&'a ProcessorCounts),
    /// The sampler used this much processor time since the last such feedback: what a processor quota is held against.
    SamplerTime(Duration),
    /// How each program stands, before each plan, where a driver says which of them run.
    Programs(&'a [ProgramState]),
}

/// How a program stands to the others of its class: each is judged by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramState {
    /// Its address space.
    pub space: SpaceId,
    /// Since when it runs, but for naps; `None` while it sleeps: then no round reads its marks, and its pages leave for that alone.
    pub awake_since: Option<Time>,
    /// How patient to be with its idle pages: [`CapacityView::backoff`], of this program.
    pub backoff: f64,
    /// See [`CapacityView::least_idle`].
    pub least_idle: Duration,
}

/// When a policy wants to be called next, and how pages are to be watched until then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Schedule {
    /// When and how to look at pages.
    pub cadence: Cadence,
    /// When to plan next; `None` if only a round or an event should cause it.
    pub wake_at: Option<Time>,
}

/// What a policy shows of its inside.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyReport {
    /// Bytes it keeps beside [`Pages`]: columns, lists, histograms.
    pub memory_bytes: usize,
    /// Figures for reports and plots.
    pub metrics: Vec<Metric>,
}

/// A policy that puts the kernel's own lists in order and leaves the moving to the kernel ([`Kernel::lists`]).
pub trait KernelLists {
    /// What it said since the last call, in order, moved to the end of `into`. It requests no moves.
    fn marks(&mut self, into: &mut Vec<ListMark>);
}

/// A policy that chooses the pages whose every use the driver reports as a hint fault ([`Needs::own_marks`]).
pub trait PageWatch {
    /// The pages from now on, in place of those named before; `None` leaves them as they are.
    fn watch(&mut self) -> Option<Vec<PageId>>;
}

/// What a policy offers beyond [`Policy`], because its mechanism wants it and hardly any other does.
pub enum Facet<'a> {
    /// It orders the kernel's lists.
    Lists(&'a mut dyn KernelLists),
    /// It chooses pages to watch.
    Watch(&'a mut dyn PageWatch),
}

/// Decision code: which pages should change tier, best first.
///
/// Five methods make a policy; the others have a default that does nothing. What a policy uses beyond the five:
///
/// | method or field | used by |
/// |---|---|
/// | [`Setup::scale`], [`Setup::sample_parts`] | those that state amounts in bytes, pages or samples |
/// | [`Setup::granted`], several [`Profile::needs`] | `terrace` |
/// | [`Setup::prices`] | `arms`, `hotness-walk`, `terrace` |
/// | [`Setup::oracle`] | `clairvoyant` |
/// | [`Feedback::Rejected`] | `flexmem`, those that promote in hint faults |
/// | [`Feedback::Processor`] | `alto`, `arms`, `colloid`, `hotness-walk`, `hybridtier`, `pact`, `terrace` |
/// | [`Feedback::Programs`], [`Policy::knows_sleep`] | `age`, `terrace` |
/// | [`Feedback::SamplerTime`] | `flexmem`, `memtis`, `terrace`, `tieredmms` |
/// | [`Policy::place`] | static placements, `clairvoyant`, `memtis`, `pond-static`, `terrace`, those that promote in hint faults |
/// | [`Profile::kernel`] | `flexhm`, `flexmem`, `hemem`, `memory-mode`, `memtis`, `tieredmms`, those that promote in hint faults |
/// | [`Facet::Lists`] | `tieredmms` with `lists=kernel` |
/// | [`Facet::Watch`] | `thermostat` |
pub trait Policy: Send {
    /// Who it is and what it counts on.
    fn profile(&self) -> Profile;

    /// Takes in what the driver knows of the surroundings: before anything else, and again when some of it changes.
    fn configure(&mut self, _setup: Setup) {}

    /// Pages came under management, or are about to leave it.
    fn remap(&mut self, _now: Time, _change: Remap<'_>, _pages: &mut Pages) {}

    /// Something was seen. The pages' tiers are up to date already.
    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages);

    /// Something the policy asked for is done, or was refused.
    fn feedback(&mut self, _now: Time, _feedback: Feedback<'_>, _pages: &mut Pages) {}

    /// Ranks: fills `requests`, best first, knowing the room there is.
    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests);

    /// Where a page that is touched for the first time should go, where the driver can choose: the first tier with room.
    fn place(&mut self, _now: Time, _page: PageId, capacity: &CapacityView<'_>) -> TierId {
        let with_room = capacity.tiers.iter().position(|tier| tier.free() > 0);
        TierId(with_room.unwrap_or(capacity.tiers.len() - 1) as u8)
    }

    /// Whether it knows that programs sleep ([`Feedback::Programs`]): then rounds leave out those that do.
    fn knows_sleep(&self) -> bool {
        false
    }

    /// When to look and when to plan next. Asked after every call.
    fn schedule(&self) -> Schedule;

    /// What it shows of its inside.
    fn report(&self) -> PolicyReport;

    /// What it offers beyond this trait.
    fn facet(&mut self) -> Option<Facet<'_>> {
        None
    }
}
