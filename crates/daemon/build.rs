//! Has the linker compress the debug information of `terraced`: two thirds of it are std's and libbpf's, and a backtrace reads it compressed as well.
//!
//! In: nothing. Out: an argument of the linker. Must not: build anything.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,--compress-debug-sections=zlib");
}
