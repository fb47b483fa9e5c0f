//! Modules that are built from source for a kernel of the lab, with the compiler that Debian built that kernel with.
//!
//! In: a folder with a module's source, a kernel of the cache. Out: the .ko file. Must not: use the host's compiler or headers:
//! a kernel of another release wants another compiler, and programs of a newer Debian do not run on an older one.
//!
//! Everything that the headers package depends on is fetched like a kernel and unpacked into a small root of its own, once a
//! kernel; make runs in there (`unshare`, `chroot`). Without root the kernel must let users have namespaces.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::error::{LabError, file_error};
use crate::kernel::{Cache, Kernel};
use crate::tools::output_of;

/// What building needs beside what the headers depend on; on Debian these are always there, so nothing depends on them.
const TOOLS: [&str; 9] = ["make", "gcc", "bash", "coreutils", "sed", "grep", "mawk", "findutils", "diffutils"];
/// What belongs to an unpacked system and is made when packages are installed: a link, and where it may point.
const LINKS: [(&str, &str, &str); 2] = [("bin/sh", "bin/bash", "bash"), ("usr/bin/awk", "usr/bin/mawk", "mawk")];
/// Where the source lies in the root.
const FOLDER: &str = "build";

/// Mounts what compilers and kernel tools expect, in a namespace of its own, and runs make. ROOT and RELEASE are its arguments.
const SCRIPT: &str = r#"mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" &&
exec chroot "$1" /usr/bin/make -C "/usr/src/linux-headers-$2" M=/build DEB_BUILD_ARCH=amd64 DEB_HOST_ARCH=amd64 modules"#;

/// Builds the module in `source`, a folder of the host whose name is the module's, and returns the file.
///
/// # Errors
/// When headers or compiler cannot be fetched, or with the compiler's own words.
pub(crate) fn build(cache: &Cache, kernel: &Kernel, source: &Path) -> Result<Vec<u8>, LabError> {
    let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !source.join("Kbuild").exists() {
        let path = source.display();
        return Err(LabError::Missing(format!("{path}: no module's source is there (it would have a file Kbuild)")));
    }
    let root = cache.build_root(kernel, &TOOLS, prepare)?;
    let _lock = cache.lock()?;
    let folder = root.join(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(file_error(&folder))?;
    }
    fs::create_dir(&folder).map_err(file_error(&folder))?;
    let mut sources = BTreeMap::new();
    for entry in fs::read_dir(source).map_err(file_error(source))? {
        let path = entry.map_err(file_error(source))?.path();
        let wanted = path.extension().is_some_and(|ending| ending == "c" || ending == "h");
        if wanted || path.ends_with("Kbuild") {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            sources.insert(file, fs::read(&path).map_err(file_error(&path))?);
        }
    }
    // What was built before from the same bytes need not be built again; the whole source is compared, not a sum of it.
    let (built, built_from) = (root.join(format!("{name}.ko")), root.join(format!("{name}.source")));
    let text = sources.iter().flat_map(|(file, bytes)| [file.as_bytes(), b"\n", bytes.as_slice(), b"\n"].concat());
    let text: Vec<u8> = text.collect();
    if fs::read(&built_from).is_ok_and(|before| before == text)
        && let Ok(module) = fs::read(&built)
    {
        return Ok(module);
    }
    for (file, bytes) in &sources {
        let to = folder.join(file);
        terrace_files::write(&to, bytes).map_err(file_error(&to))?;
    }
    tracing::info!(module = name, kernel = kernel.release, "building");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["sh", "-ec", SCRIPT, "sh"]).arg(&root).arg(&kernel.release).env("LC_ALL", "C");
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    output_of(&mut command, "util-linux")?;
    let module = folder.join(format!("{name}.ko"));
    let module = fs::read(&module).map_err(file_error(&module))?;
    // The source last: a module without it is built again.
    let _ = fs::remove_file(&built_from);
    terrace_files::write(&built, &module).map_err(file_error(&built))?;
    terrace_files::write(&built_from, text).map_err(file_error(&built_from))?;
    Ok(module)
}

/// Makes of unpacked packages a root in which programs run.
fn prepare(root: &Path) -> Result<(), LabError> {
    for folder in ["proc", "dev", "tmp"] {
        let path = root.join(folder);
        fs::create_dir_all(&path).map_err(file_error(&path))?;
    }
    for (link, target, points_to) in LINKS {
        let path = root.join(link);
        if !path.exists() && root.join(target).exists() {
            symlink(points_to, &path).map_err(file_error(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_module_is_told() {
        let no_path = std::path::PathBuf::new;
        let kernel = Kernel { release: "6.1.0-56-amd64".to_owned(), image: no_path(), modules: no_path() };
        let folder = tempfile::tempdir().unwrap();
        let error = build(&Cache::at(folder.path()), &kernel, Path::new("/nowhere/terrace_mm")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/terrace_mm") && error.to_string().contains("Kbuild"), "{error}");
    }
}
