//! Which other programs a recorded program starts: QEMU's user mode runs them natively, so that what they do is not recorded.
//!
//! In: the program's system calls. Out: a line a program in a file, its path. Must not: call into QEMU, or change what is started.
//!
//! A program that is to be started has usually been forked off before, as a copy of QEMU with the plugin in it. So the lines go to a file that all copies append to.

use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Numbers of the system calls that start a program on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl).
const EXECVE: i64 = 59;
const EXECVEAT: i64 = 322;
/// PATH_MAX of Linux: longer paths are refused by the kernel.
const LONGEST_PATH: usize = 4096;

/// Where the lines go.
#[derive(Debug)]
pub(crate) struct Started {
    file: PathBuf,
}

impl Started {
    pub(crate) fn new(file: PathBuf) -> Started {
        Started { file }
    }

    /// The program makes a system call. A path that leads to no file is not entered: a search along PATH tries several.
    pub(crate) fn system_call(&self, number: i64, arguments: [u64; 2]) {
        let address = match number {
            EXECVE => arguments[0],
            EXECVEAT => arguments[1],
            _ => return,
        };
        let Some(path) = text_at(address) else { return };
        if Path::new(std::ffi::OsStr::from_bytes(&path)).is_file() && !path.contains(&b'\n') {
            // A recording without these lines is as good: only the note on what it lacks is missing.
            let line = [&path[..], b"\n"].concat();
            let _ = File::options().append(true).open(&self.file).and_then(|mut file| file.write_all(&line));
        }
    }
}

/// A text of this process that ends with a zero. The kernel reads it, so that an address of nothing is no fault. In user mode the program's addresses are this
/// process's own.
fn text_at(address: u64) -> Option<Vec<u8>> {
    let memory = File::open("/proc/self/mem").ok()?;
    let mut text = vec![0; LONGEST_PATH];
    // Up to the end of what is mapped, if that comes first.
    let length = memory.read_at(&mut text, address).ok()?;
    text.truncate(text[..length].iter().position(|byte| *byte == 0)?);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_are_there_are_entered_and_nothing_else() {
        let file = std::env::temp_dir().join(format!("terrace-started-{}", std::process::id()));
        File::create(&file).unwrap();
        let started = Started::new(file.clone());
        let at = |text: &std::ffi::CStr| text.as_ptr().addr() as u64;
        started.system_call(EXECVE, [at(c"/bin/sh"), 0]);
        started.system_call(EXECVE, [at(c"/nowhere/sh"), 0]);
        started.system_call(EXECVEAT, [0, at(c"/bin/ls")]);
        started.system_call(0, [at(c"/bin/cat"), 0]);
        started.system_call(EXECVE, [8, 0]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "/bin/sh\n/bin/ls\n");
        std::fs::remove_file(&file).unwrap();
    }
}
