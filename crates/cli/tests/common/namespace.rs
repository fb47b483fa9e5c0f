//! Commands in a pid namespace of their own, as in a container with all rights.
//!
//! In: lines of the shell. Out: what they print, and swap made outside of the namespace for them. Must not: leave anything behind.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Finished, PATIENCE, Running, terrace};

/// Why no namespace can be made here, if none can.
pub(crate) fn refused() -> Option<String> {
    match Command::new("unshare").args(["-pf", "--mount-proc", "true"]).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// Runs a line of the shell, `terrace` and all, as the first process of a pid namespace of its own.
pub(crate) fn inside(script: &str) -> Finished {
    let mut command = Command::new("unshare");
    command.args(["-pf", "--mount-proc", "--kill-child", "sh", "-c", script]);
    command.env_remove("TERRACE_LOG").env("COLUMNS", "100").stdin(Stdio::null());
    Running::start(&mut command).finish(2 * PATIENCE)
}

/// The command's words, for a shell.
pub(crate) fn words(arguments: &[&str]) -> String {
    let mut command = terrace();
    command.args(arguments);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ")
}

/// Compressed swap that somebody else set up, as far as Terrace can tell.
pub(crate) struct Swap(String);

impl Swap {
    pub(crate) fn set_up() -> Swap {
        let number = std::fs::read_to_string("/sys/class/zram-control/hot_add").unwrap().trim().to_owned();
        let swap = Swap(number);
        std::fs::write(format!("/sys/block/zram{}/disksize", swap.0), "1G").unwrap();
        swap.tool("mkswap", &["-L", "a-test"]);
        swap.tool("swapon", &["-p", "32000"]);
        swap
    }

    pub(crate) fn device(&self) -> String {
        format!("/dev/zram{}", self.0)
    }

    fn tool(&self, program: &str, options: &[&str]) {
        let output = Command::new(program).args(options).arg(self.device()).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // What is left behind is found by the look at the machine's state.
        let _ = Command::new("swapoff").arg(self.device()).output();
        for _ in 0..100 {
            let _ = std::fs::write(format!("/sys/block/zram{}/reset", self.0), "1");
            if std::fs::write("/sys/class/zram-control/hot_remove", &self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
