//! What the administrator set for huge pages: read again each time it matters, and what follows from it.
//!
//! In: the kernel's settings (/sys/kernel/mm/transparent_hugepage), and a process's own (`THP_enabled` of /proc/PID/status). Out: whether blocks of a
//! program may be made huge, and lines for the doctor. Must not: change a setting, or remember one: it may be switched while a program runs.
//!
//! A block that was split to look inside, in vain, is made huge again only where the program would get a huge page by its own fault: with `always`, or with
//! `madvise` in areas that asked.
//!
//! MADV_COLLAPSE goes by none of these settings (madvise(2)), so Terrace does. `never` means that it makes no huge page. With `madvise` it does, also
//! in areas that did not ask: the huge page lasts until the block is in swap, a millisecond later, and what comes back are small pages, so that
//! the program never has one that it did not ask for. One that cannot leave is split again at once (`movers/blocks.rs`).

use std::path::Path;

use crate::swap_in::FolioSize;

/// Where the kernel has its settings for huge pages.
pub(crate) const SETTINGS: &str = "sys/kernel/mm/transparent_hugepage";
/// The size whose own setting, since Linux 6.8, stands above the one for all.
const BLOCK: &str = "hugepages-2048kB/enabled";
/// Says that the setting for all decides.
const INHERIT: &str = "inherit";
const NEVER: &str = "never";

/// The settings, as the kernel has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct HugePages {
    /// `always`, `madvise` or `never` for huge pages of 2 MiB; `None` where the kernel has none.
    pub enabled: Option<String>,
    /// When a fault waits for memory to be compacted.
    pub defrag: Option<String>,
    /// Pages that khugepaged fills to make a block huge.
    pub max_ptes_none: Option<u64>,
    /// Pages that khugepaged brings back from swap for it.
    pub max_ptes_swap: Option<u64>,
    /// Smaller folios that are switched on: size and setting.
    pub folios: Vec<(String, String)>,
    /// What follows from all that, a line each.
    pub follows: Vec<String>,
}

impl HugePages {
    /// Reads them below `root` ("/" or a fixture).
    pub fn read(root: &Path) -> HugePages {
        let directory = root.join(SETTINGS);
        let number = |path: &str| std::fs::read_to_string(directory.join(path)).ok()?.trim().parse().ok();
        let for_all = choice(&directory.join("enabled"));
        let folios = FolioSize::all().filter_map(|size| {
            let own = choice(&size.file(root))?;
            let in_force = if own == INHERIT { for_all.clone()? } else { own };
            (in_force != NEVER).then(|| (size.to_string(), in_force))
        });
        let mut read = HugePages {
            enabled: of_blocks(root),
            defrag: choice(&directory.join("defrag")),
            max_ptes_none: number("khugepaged/max_ptes_none"),
            max_ptes_swap: number("khugepaged/max_ptes_swap"),
            folios: folios.collect(),
            follows: Vec::new(),
        };
        read.follows = read.consequences();
        read
    }

    fn consequences(&self) -> Vec<String> {
        let mut follows = Vec::new();
        let mut say = |line: String| follows.push(line);
        let Some(enabled) = self.enabled.as_deref() else {
            say("this kernel has no huge pages (CONFIG_TRANSPARENT_HUGEPAGE): blocks leave page by page".to_owned());
            return follows;
        };
        if enabled == NEVER {
            say(NONE_IS_MADE.to_owned());
        } else {
            let whose = if enabled == "always" { "" } else { ", in memory that asks for huge pages" };
            say(format!(
                "huge pages are set to {enabled}: a block that leaves is made huge first, and comes back as small pages"
            ));
            say("a huge page shows as a whole whether it is used: a few are split to see what is used inside of the others".to_owned());
            if let Some(defrag @ (NEVER | "defer" | "defer+madvise")) = self.defrag.as_deref() {
                say(format!(
                    "defrag is set to {defrag}, which holds for a program's own faults: for a block that leaves memory may be compacted, and the mover \
                     waits for it"
                ));
            }
            if let Some(pages) = self.max_ptes_none.filter(|pages| *pages > 0) {
                say(format!(
                    "khugepaged fills up to {pages} empty pages of a block to make it huge{whose} (khugepaged/max_ptes_none): memory that is used \
                     sparsely grows"
                ));
            }
            if let Some(pages) = self.max_ptes_swap.filter(|pages| *pages > 0) {
                say(format!(
                    "khugepaged brings up to {pages} pages of a block back from swap to make it huge{whose}; 0 in khugepaged/max_ptes_swap leaves them \
                     there"
                ));
            }
        }
        for (size, setting) in &self.folios {
            let whose = if setting == "always" { "" } else { " that asks for huge pages" };
            say(format!(
                "folios of {size} are on ({setting}): memory{whose} comes and leaves in them, and one touch may bring a whole one back from swap"
            ));
        }
        follows
    }
}

/// What is said where the machine forbids huge pages.
pub(crate) const NONE_IS_MADE: &str =
    "huge pages are set to never, so none is made: blocks leave page by page, which interrupts a program more often";

/// Whether the administrator forbids huge pages. Where the kernel has no such setting it has no huge pages either, and says so itself.
pub(crate) fn are_forbidden(root: &Path) -> bool {
    of_blocks(root).is_some_and(|setting| setting == NEVER)
}

/// Whether only memory gets huge pages that asks for them.
pub(crate) fn only_where_asked(root: &Path) -> bool {
    of_blocks(root).is_some_and(|setting| setting == "madvise")
}

/// Whether a process forbids them (PR_SET_THP_DISABLE, its own or inherited). Where that cannot be read the kernel decides.
pub(crate) fn are_forbidden_by(root: &Path, pid: u32) -> bool {
    let status = std::fs::read_to_string(root.join(format!("proc/{pid}/status"))).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).is_some_and(|value| value.trim() == "0")
}

/// The setting in force for huge pages of 2 MiB: their own, or, where they have none or inherit it, the one for all.
fn of_blocks(root: &Path) -> Option<String> {
    let directory = root.join(SETTINGS);
    choice(&directory.join(BLOCK)).filter(|own| own != INHERIT).or_else(|| choice(&directory.join("enabled")))
}

/// The choice in force: the kernel shows all values and puts that one in brackets.
fn choice(path: &Path) -> Option<String> {
    chosen(&std::fs::read_to_string(path).ok()?).map(str::to_owned)
}

/// Of `always [madvise] never` the word in brackets.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    text.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::tests::tree;

    fn file(name: &str) -> String {
        format!("{SETTINGS}/{name}")
    }

    #[test]
    fn the_setting_of_2_mib_stands_above_the_one_for_all() {
        let all = ["[always] madvise never\n", "always [madvise] never\n", "always madvise [never]\n"];
        for (text, forbidden) in all.into_iter().zip([false, false, true]) {
            let alone = tree(&[(&file("enabled"), text)]);
            assert_eq!(are_forbidden(alone.path()), forbidden, "{text}");
            let inherits = tree(&[(&file("enabled"), text), (&file(BLOCK), "always [inherit] madvise never\n")]);
            assert_eq!(are_forbidden(inherits.path()), forbidden, "{text}");
            let own = tree(&[(&file("enabled"), text), (&file(BLOCK), "always inherit madvise [never]\n")]);
            assert!(are_forbidden(own.path()), "{text}");
            let own = tree(&[(&file("enabled"), text), (&file(BLOCK), "[always] inherit madvise never\n")]);
            assert!(!are_forbidden(own.path()), "{text}");
        }
        assert!(!are_forbidden(tree(&[]).path()), "a kernel without huge pages says so itself");
    }

    #[test]
    fn a_process_forbids_them_by_its_status() {
        for (status, forbidden) in
            [("Name:\tx\nTHP_enabled:\t0\nThreads:\t1\n", true), ("THP_enabled:\t1\n", false), ("Name:\tx\n", false)]
        {
            assert_eq!(are_forbidden_by(tree(&[("proc/7/status", status)]).path(), 7), forbidden, "{status}");
        }
        assert!(!are_forbidden_by(tree(&[]).path(), 7));
    }

    #[test]
    fn what_follows_from_the_settings_is_said() {
        let settings = |enabled: &str, defrag: &str, none: &str, swap: &str, folios: &str| {
            let root = tree(&[
                (&file("enabled"), enabled),
                (&file("defrag"), defrag),
                (&file("khugepaged/max_ptes_none"), none),
                (&file("khugepaged/max_ptes_swap"), swap),
                (&file("hugepages-64kB/enabled"), folios),
            ]);
            HugePages::read(root.path())
        };
        let direct = "always defer defer+madvise [madvise] never\n";
        let off = "always inherit madvise [never]\n";
        let usual = settings("[always] madvise never\n", direct, "511\n", "64\n", off);
        assert_eq!((usual.enabled.as_deref(), usual.defrag.as_deref()), (Some("always"), Some("madvise")));
        assert_eq!((usual.max_ptes_none, usual.max_ptes_swap, usual.folios.len()), (Some(511), Some(64), 0));
        let text = usual.follows.join("\n");
        assert!(text.contains("fills up to 511") && text.contains("brings up to 64 pages"), "{text}");
        assert!(!text.contains("defrag") && !text.contains("folios") && !text.contains("that asks"), "{text}");
        let asked =
            settings("always [madvise] never\n", "always defer defer+madvise madvise [never]\n", "0\n", "8\n", off);
        let text = asked.follows.join("\n");
        assert!(text.contains("up to 8 pages") && text.contains("in memory that asks"), "{text}");
        assert!(text.contains("defrag is set to never") && !text.contains("max_ptes_none"), "{text}");
        let never = settings("always madvise [never]\n", direct, "511\n", "64\n", off);
        assert_eq!(never.follows, [NONE_IS_MADE], "khugepaged rests");
        let inherits = "always [inherit] madvise never\n";
        assert_eq!(settings("always madvise [never]\n", direct, "0\n", "0\n", inherits).folios, []);
        let folios = settings("always madvise [never]\n", direct, "0\n", "0\n", "[always] inherit madvise never\n");
        assert_eq!(folios.folios, [("64KiB".to_owned(), "always".to_owned())]);
        assert!(folios.follows.iter().any(|line| line.contains("folios of 64KiB are on (always)")), "{folios:?}");
        let none = HugePages::read(tree(&[]).path());
        assert!(none.follows[0].contains("CONFIG_TRANSPARENT_HUGEPAGE") && none.enabled.is_none(), "{none:?}");
    }
}
