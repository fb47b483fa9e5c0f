//! Swap that is the user's: a zram, or what else a path names.
//!
//! In: size and priority. Out: its device. Must not: stay; it is taken away when it is dropped.

use std::path::Path;
use std::process::Command;

use super::read;

/// A compressed swap area as a user has it, taken away when it is dropped.
pub(crate) struct OwnSwap(pub(crate) u32);

impl OwnSwap {
    /// Of this size and priority.
    pub(crate) fn new(mib: u64, priority: &str) -> OwnSwap {
        let number = read(Path::new("/sys/class/zram-control/hot_add")).trim().parse().unwrap();
        let swap = OwnSwap(number);
        std::fs::write(format!("/sys/block/zram{number}/disksize"), (mib << 20).to_string()).unwrap();
        swap_on(Path::new(&swap.device()), priority).unwrap();
        swap
    }

    /// Its path.
    pub(crate) fn device(&self) -> String {
        format!("/dev/zram{}", self.0)
    }
}

impl Drop for OwnSwap {
    fn drop(&mut self) {
        let off = Command::new("swapoff").arg(self.device()).output();
        let reset = std::fs::write(format!("/sys/block/zram{}/reset", self.0), "1");
        let removed = std::fs::write("/sys/class/zram-control/hot_remove", self.0.to_string());
        println!("    {}: {:?}, {reset:?}, {removed:?}", self.device(), off.map(|off| off.status));
    }
}

/// Makes swap of a device or a file and switches it on; what refused it, and its words, where it cannot.
pub(crate) fn swap_on(place: &Path, priority: &str) -> Result<(), String> {
    for words in [vec!["mkswap"], vec!["swapon", "-p", priority]] {
        let done = Command::new(words[0]).args(&words[1..]).arg(place).output().unwrap();
        if !done.status.success() {
            return Err(format!("{words:?}: {}", String::from_utf8_lossy(&done.stderr).trim()));
        }
    }
    Ok(())
}
