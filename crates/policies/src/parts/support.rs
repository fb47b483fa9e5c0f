//! Small things several policies need: walks over pages, watermarks, and the factor of a scaled-down machine.
//!
//! In: pages, capacities. Out: ids, amounts of pages. Must not: hold state.

use std::ops::Range;

use terrace_core::pages::Pages;
use terrace_core::policy::CapacityView;
use terrace_core::units::{BLOCK_PAGES, Bytes, PageId, SpaceId, TierId, Vpn};

use crate::{SettingInfo, Settings, SettingsError};

/// Takes a size of at least one page; of a full-size machine, returned as it is.
///
/// # Errors
/// When the text is none.
pub fn size(settings: &mut Settings, key: &str) -> Result<Bytes, SettingsError> {
    settings.take(key, "a size such as 256MiB", |text| text.parse::<Bytes>().ok().filter(|size| size.pages() > 0))
}

/// A full-size amount of pages on a machine `scale` times smaller, at least 1.
pub fn scaled_pages(full: Bytes, scale: u32) -> u64 {
    scaled_count(full.pages(), scale)
}

/// A full-size count, such as of samples, on a machine `scale` times smaller, at least 1; the largest number stays.
pub fn scaled_count(full: u64, scale: u32) -> u64 {
    if full == u64::MAX { full } else { (full / u64::from(scale.max(1))).max(1) }
}

/// A full-size count of samples on a machine `scale` times smaller, where each comes in `parts` observations.
pub fn scaled_samples(full: u64, scale: u32, parts: u32) -> u64 {
    if full == u64::MAX { full } else { (full.saturating_mul(u64::from(parts)) / u64::from(scale.max(1))).max(1) }
}

/// Pages the fastest tier may hold: its capacity, or the goal where that is less.
pub fn fast_limit(capacity: &CapacityView<'_>) -> u64 {
    let size = capacity.tiers[0].capacity;
    capacity.fast_limit.map_or(size, |limit| limit.min(size))
}

/// The first tier below the fastest that has room, or the slowest.
pub fn first_below(capacity: &CapacityView<'_>) -> TierId {
    let with_room = (1..capacity.tiers.len()).find(|&tier| capacity.tiers[tier].free() > 0);
    TierId(with_room.unwrap_or(capacity.tiers.len() - 1) as u8)
}

/// MEMTIS's watermarks of free fast memory, in 4 KiB pages.
///
/// Source: MEMTIS code (specification section 6): demotion at 2 % of the limit, clamped to 50 to 1000 MiB, promotion at
/// 3 %, clamped to 100 to 1500 MiB; a direct demotion frees 50 MiB more.
///
/// One departure: the lower clamps are at most a twentieth and a tenth of the limit, and the 50 MiB at most half of what promotion
/// leaves. On fast memory of 1000 MiB or more nothing differs; on 100 MiB and less MEMTIS would keep all of it free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemtisMarks {
    /// Demotion starts when less than this is free.
    pub demote: u64,
    /// Demotion frees up to this, and promotion leaves it free.
    pub promote: u64,
    /// What a directly woken demotion frees beyond that.
    pub direct_extra: u64,
}

/// The setting of these watermarks.
pub const RESERVE: SettingInfo = SettingInfo {
    key: "reserve",
    default: "auto",
    meaning: "fast memory that promotion leaves free; auto is 3 %, 100 to 1500 MiB and at most a tenth; demotion starts at two thirds",
};

/// Reads [`RESERVE`]: `None` is auto.
///
/// # Errors
/// When the value is neither auto nor a share below one half.
pub fn reserve(settings: &mut Settings) -> Result<Option<f64>, SettingsError> {
    settings.take(RESERVE.key, "auto or a share below 50%", |text| match text {
        "auto" => Some(None),
        share => terrace_core::units::parse_share(share).ok().filter(|share| *share < 0.5).map(Some),
    })
}

impl MemtisMarks {
    /// The marks for a limit of fast pages; `reserve` is a share of it, or `None` for MEMTIS's own.
    pub fn new(limit: u64, scale: u32, reserve: Option<f64>) -> MemtisMarks {
        let share = |share: f64| (limit as f64 * share).floor() as u64;
        let mark = |wanted: f64, low: u64, small: u64, high: u64| {
            let low = scaled_pages(Bytes::mib(low), scale).min(limit / small);
            share(wanted).clamp(low, scaled_pages(Bytes::mib(high), scale))
        };
        let (demote, promote) = match reserve {
            Some(reserve) => (share(reserve * 2.0 / 3.0), share(reserve)),
            None => (mark(0.02, 50, 20, 1000), mark(0.03, 100, 10, 1500)),
        };
        MemtisMarks { demote, promote, direct_extra: scaled_pages(Bytes::mib(50), scale).min(promote / 2) }
    }
}

impl MemtisMarks {
    /// What MEMTIS's periodic demoter frees, in 4 KiB pages: with hot pages waiting in slow memory enough to take them all in,
    /// otherwise nothing until the demotion watermark is passed, and then up to the promotion watermark.
    pub fn need(&self, limit: u64, used: u64, hot_slow: u64) -> u64 {
        let above = |free: u64| (used + free).saturating_sub(limit);
        if hot_slow > 0 {
            above(hot_slow + self.promote)
        } else if above(self.demote) > 0 {
            above(self.promote)
        } else {
            0
        }
    }
}

/// Calls `each` for every known page of a range of a space.
pub fn each_page(pages: &Pages, space: SpaceId, range: &Range<Vpn>, mut each: impl FnMut(PageId)) {
    for (block, info) in pages.blocks_of(space) {
        let end = info.start.0 + u64::from(BLOCK_PAGES);
        if end <= range.start.0 || info.start.0 >= range.end.0 {
            continue;
        }
        let low = range.start.0.max(info.start.0) - info.start.0;
        let high = range.end.0.min(end) - info.start.0;
        for offset in low as u32..high as u32 {
            each(block.first_page().plus(offset));
        }
    }
}

/// Calls `each` for every unit (a page, or a huge block by its first page) with memory behind it, by space and address.
pub fn each_unit(pages: &Pages, mut each: impl FnMut(PageId, u64, TierId)) {
    for (block, info) in pages.blocks() {
        let step = if info.huge { BLOCK_PAGES } else { 1 };
        for unit in (0..BLOCK_PAGES).step_by(step as usize).map(|offset| block.first_page().plus(offset)) {
            if let Some(tier) = pages[unit].tier() {
                each(unit, u64::from(step), tier);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memtis_marks_are_shares_within_clamps_that_scale_along() {
        let check = |limit: Bytes, scale: u32, demote: Bytes, promote: Bytes| {
            let marks = MemtisMarks::new(limit.pages(), scale, None);
            assert_eq!((marks.demote, marks.promote), (demote.pages(), promote.pages()), "{limit} at {scale}");
        };
        check(Bytes::gib(10), 1, Bytes::gib(10).share(0.02), Bytes::gib(10).share(0.03));
        check(Bytes::gib(1), 1, Bytes::mib(50), Bytes::mib(100));
        check(Bytes::gib(100), 1, Bytes::mib(1000), Bytes::mib(1500));
        check(Bytes::mib(1000), 1, Bytes::mib(50), Bytes::mib(100));
        check(Bytes::gib(1), 64, Bytes::kib(1000 * 1024 / 64), Bytes::kib(1500 * 1024 / 64));
        // Less than MEMTIS keeps free: a part of it is kept.
        check(Bytes::mib(20), 1, Bytes::mib(1), Bytes::mib(2));
        assert_eq!(MemtisMarks::new(Bytes::mib(20).pages(), 1, None).direct_extra, Bytes::mib(1).pages());
        assert_eq!(MemtisMarks::new(Bytes::gib(4).pages(), 1, None).direct_extra, Bytes::mib(50).pages());
    }

    #[test]
    fn a_reserve_that_was_asked_for_is_the_share_it_says() {
        let marks = MemtisMarks::new(1000, 1, Some(0.03));
        assert_eq!((marks.demote, marks.promote, marks.direct_extra), (20, 30, 15));
        for (text, wanted) in [("auto", Some(None)), ("3%", Some(Some(0.03))), ("60%", None), ("some", None)] {
            let mut settings = Settings::from_pairs([("reserve", text)]);
            assert_eq!(reserve(&mut settings).ok(), wanted, "{text}");
        }
    }

    #[test]
    fn walks_see_just_the_pages_of_the_range() {
        let mut pages = Pages::new();
        pages.map(SpaceId(0), Vpn(0)..Vpn(1200));
        let mut seen = 0;
        each_page(&pages, SpaceId(0), &(Vpn(500)..Vpn(1030)), |_| seen += 1);
        assert_eq!(seen, 530);
        each_page(&pages, SpaceId(0), &(Vpn(0)..Vpn(u64::MAX)), |_| seen += 1);
        assert_eq!(seen, 530 + 3 * 512);
    }
}
