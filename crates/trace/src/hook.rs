//! The recorder for programs that can be recompiled: its C source, and the flags that put it into a program.
//!
//! In: where the caller keeps the compiled recorder. Out: text. Must not: run a compiler; the command line does.
//!
//! gcc and clang call a function before every access when they compile for the thread sanitizer. The recorder takes
//! the place of the sanitizer's runtime and writes the addresses down, which costs a few times the native run time
//! where simulation of every instruction costs thousands. [`crate::import::ImportFormat::Hook`] reads what it writes.

/// The recorder, a C file that needs nothing but a C library with threads.
pub const RECORDER_SOURCE: &str = include_str!("../hook/terrace_record.c");
/// The name under which to save it.
pub const RECORDER_FILE_NAME: &str = "terrace_record.c";
/// Flags that compile it: never with the sanitizer, because it must not record itself.
pub const RECORDER_COMPILE_FLAGS: [&str; 4] = ["-O2", "-c", "-fPIC", "-fno-sanitize=all"];

/// The flags with which to build a program that records itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HookFlags {
    /// For every compilation (CFLAGS, CXXFLAGS).
    pub compile: Vec<String>,
    /// For the link (LDFLAGS, LIBS), after the compilation flags if both are given.
    pub link: Vec<String>,
}

/// The flags, for a recorder compiled to the object file at `recorder_object_path`.
///
/// Compiling and linking must be separate steps, as in every Makefile: the link switches the sanitizer off again,
/// because the compiler would otherwise add the sanitizer's own runtime; and it wraps the copying functions, which
/// compilers call without announcing the accesses in them.
pub fn flags(recorder_object_path: &str) -> HookFlags {
    let owned = |flags: &[&str]| flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>();
    let mut link = owned(&["-fno-sanitize=all", recorder_object_path]);
    link.extend(owned(&["-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset", "-pthread"]));
    HookFlags { compile: owned(&["-fsanitize=thread"]), link }
}

/// The flags as lines for a shell. They suit builds that compile and link in separate steps.
pub fn hook_flags(recorder_object_path: &str) -> String {
    let flags = flags(recorder_object_path);
    let compile = flags.compile.join(" ");
    let link = flags.link.iter().map(|flag| quoted(flag)).collect::<Vec<_>>().join(" ");
    format!("CFLAGS=\"$CFLAGS {compile}\"\nCXXFLAGS=\"$CXXFLAGS {compile}\"\nLDFLAGS=\"$LDFLAGS {link}\"\n")
}

/// As the inside of double quotes in a shell, in single quotes where the text is more than plain.
fn quoted(flag: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,+:@%".contains(letter);
    if flag.chars().all(plain) { flag.to_owned() } else { format!("'{}'", flag.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_name_the_recorder_and_switch_the_runtime_off() {
        let text = hook_flags("/opt/terrace/terrace_record.o");
        assert!(text.starts_with("CFLAGS=\"$CFLAGS -fsanitize=thread\"\n"), "{text}");
        assert!(text.contains("-fno-sanitize=all /opt/terrace/terrace_record.o -Wl,--wrap=memcpy"), "{text}");
        assert!(hook_flags("/a b/r.o").contains(" '/a b/r.o' "));
    }
}
