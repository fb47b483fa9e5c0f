//! Has the linker compress the debug information of `terrace-research`, as that of `terraced` is.
//!
//! In: nothing. Out: an argument of the linker. Must not: build anything.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,--compress-debug-sections=zlib");
}
