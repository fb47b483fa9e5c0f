//! Stock kernels: which there are, fetched into the cache, ready to boot.
//!
//! In: a version such as 6.12, or `newest`. Out: a [`Kernel`]: its release, its uncompressed image, its modules. Must
//! not: build or change a kernel: what boots is what Debian ships.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::apt::{Apt, debian_release};
use crate::error::{LabError, file_error};
use crate::vmlinux;

/// The version that stands for the newest kernel in Debian.
pub const NEWEST: &str = "newest";

/// A kernel in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its release as `uname -r` says it, such as 6.12.117+deb12-amd64.
    pub release: String,
    /// The uncompressed image, an ELF file that QEMU boots directly.
    pub image: PathBuf,
    /// The folder with its modules.
    pub modules: PathBuf,
}

/// The cache of everything that is fetched. One process at a time changes it.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    mirror: Option<String>,
}

impl Cache {
    /// The cache of this user: `terrace/lab` below XDG_CACHE_HOME, or below ~/.cache.
    ///
    /// # Errors
    /// When neither XDG_CACHE_HOME nor HOME is set.
    pub fn of_user() -> Result<Cache, LabError> {
        let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
        match base {
            Some(base) => Ok(Cache::at(&base.join("terrace/lab"))),
            None => Err(LabError::Invalid(
                "neither XDG_CACHE_HOME nor HOME is set: there is no place for kernels".to_owned(),
            )),
        }
    }

    /// A cache in this folder, which need not exist yet.
    pub fn at(folder: &Path) -> Cache {
        Cache { folder: folder.to_owned(), mirror: None }
    }

    /// The same cache, filled from this Debian archive instead of the one in the host's apt sources.
    pub fn with_mirror(self, mirror: Option<String>) -> Cache {
        Cache { mirror, ..self }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A kernel of this version: `6.1`, `6.12`, `6.12.117+deb12`, or `newest`. The newest that fits is fetched if none that
    /// fits is in the cache, or if `refresh` asks for the newest Debian has now.
    ///
    /// # Errors
    /// When it cannot be fetched, when there is none, or when its image is not understood.
    pub fn kernel(&self, asked: &str, refresh: bool) -> Result<Kernel, LabError> {
        let _lock = self.lock()?;
        if !refresh && let Some(kernel) = self.cached(asked)? {
            return Ok(kernel);
        }
        let apt = self.apt()?;
        let names = apt.names("linux-", refresh)?;
        let releases = releases(&names);
        let release = choose(&releases, asked).ok_or_else(|| LabError::NoSuchKernel {
            asked: asked.to_owned(),
            present: newest_of_each(&releases).join(", "),
        })?;
        if !self.kernel_folder(&release).exists() {
            self.fetch(&apt, &release, &names)?;
        }
        if asked == NEWEST {
            let note = self.newest_note();
            terrace_files::write(&note, &release).map_err(file_error(&note))?;
        }
        Ok(self.kernel_of(&release))
    }

    /// The releases in the cache, oldest first.
    ///
    /// # Errors
    /// When the cache's folder cannot be made.
    pub fn present(&self) -> Result<Vec<String>, LabError> {
        let _lock = self.lock()?;
        Ok(self.releases_here())
    }

    /// The newest release of each series in the Debian archive, oldest first.
    ///
    /// # Errors
    /// When the package lists cannot be fetched.
    pub fn offered(&self, refresh: bool) -> Result<Vec<String>, LabError> {
        let _lock = self.lock()?;
        Ok(newest_of_each(&releases(&self.apt()?.names("linux-image-", refresh)?)))
    }

    /// A busybox that needs no libraries, from Debian's package.
    ///
    /// # Errors
    /// When it cannot be fetched.
    pub fn busybox(&self) -> Result<PathBuf, LabError> {
        self.file_of_package("busybox-static", "busybox", &["usr/bin/busybox", "bin/busybox"])
    }

    /// A file out of a Debian package: `name` in the cache, one of `paths` in the package.
    ///
    /// # Errors
    /// When the package cannot be fetched, or has none of the files.
    pub(crate) fn file_of_package(&self, package: &str, name: &str, paths: &[&str]) -> Result<PathBuf, LabError> {
        let _lock = self.lock()?;
        let path = self.folder.join(name);
        if !path.exists() {
            let partial = self.partial(name)?;
            self.apt()?.unpack(&[package.to_owned()], partial.path())?;
            let found = paths.iter().map(|name| partial.path().join(name)).find(|path| path.exists());
            let found = found.ok_or_else(|| image_error(partial.path(), &format!("{package} has no {}", paths[0])))?;
            // A library's usual name is a link to the file with its version.
            let found = found.canonicalize().map_err(file_error(&found))?;
            terrace_files::rename_new(&found, &path).map_err(file_error(&path))?;
        }
        Ok(path)
    }

    /// A root folder with a kernel's headers, the compiler it was built with, and these tools; `prepare` finishes it once it is unpacked.
    ///
    /// # Errors
    /// When something of it cannot be fetched.
    pub(crate) fn build_root(
        &self,
        kernel: &Kernel,
        tools: &[&str],
        prepare: fn(&Path) -> Result<(), LabError>,
    ) -> Result<PathBuf, LabError> {
        let headers = format!("linux-headers-{}", kernel.release);
        let wanted: Vec<&str> = std::iter::once(headers.as_str()).chain(tools.iter().copied()).collect();
        let name = format!("headers/{}", kernel.release);
        self.root_of_packages(&name, &wanted, debian_release(&kernel.release), prepare)
    }

    /// A root folder with packages of a release of Debian and all that they depend on: `name` in the cache. `prepare` finishes it once it is
    /// unpacked.
    ///
    /// # Errors
    /// When something of it cannot be fetched.
    pub(crate) fn root_of_packages(
        &self,
        name: &str,
        packages: &[&str],
        release: &str,
        prepare: fn(&Path) -> Result<(), LabError>,
    ) -> Result<PathBuf, LabError> {
        let _lock = self.lock()?;
        let folder = self.folder.join(name);
        if !folder.exists() {
            let apt = self.apt()?;
            let packages = apt.with_all_they_need(packages, release)?;
            let partial = self.partial("root")?;
            let unpacked = partial.path().join("root");
            apt.unpack(&packages, &unpacked)?;
            prepare(&unpacked)?;
            let above = folder.parent().unwrap_or(&self.folder);
            fs::create_dir_all(above).map_err(file_error(above))?;
            terrace_files::rename_new(&unpacked, &folder).map_err(file_error(&folder))?;
        }
        Ok(folder)
    }

    fn fetch(&self, apt: &Apt, release: &str, names: &[String]) -> Result<(), LabError> {
        // Since 7.x the image package is empty and depends on one with the image and one with the modules.
        let split = ["binary", "modules"].map(|part| format!("linux-{part}-{release}"));
        let packages = if split.iter().all(|name| names.contains(name)) {
            split.to_vec()
        } else {
            vec![format!("linux-image-{release}")]
        };
        let partial = self.partial(release)?;
        let unpacked = partial.path().join("packages");
        apt.unpack(&packages, &unpacked)?;
        let first = |choices: [String; 2]| {
            let paths = choices.map(|choice| unpacked.join(choice));
            let missing = || image_error(&paths[0], "is not in the package");
            paths.iter().find(|path| path.exists()).cloned().ok_or_else(missing)
        };
        let compressed = first([format!("boot/vmlinuz-{release}"), format!("usr/lib/modules/{release}/vmlinuz")])?;
        let modules = first([format!("lib/modules/{release}"), format!("usr/lib/modules/{release}")])?;
        let ready = partial.path().join("ready");
        fs::create_dir(&ready).map_err(file_error(&ready))?;
        let image = fs::read(&compressed).map_err(file_error(&compressed))?;
        let image = vmlinux::extract(&image).map_err(|error| image_error(&compressed, &error.to_string()))?;
        terrace_files::write(&ready.join("vmlinux"), image).map_err(file_error(&ready))?;
        terrace_files::rename_new(&modules, &ready.join("modules")).map_err(file_error(&modules))?;
        let folder = self.kernel_folder(release);
        fs::create_dir_all(self.folder.join("kernels")).map_err(file_error(&folder))?;
        terrace_files::rename_new(&ready, &folder).map_err(file_error(&folder))
    }

    fn cached(&self, asked: &str) -> Result<Option<Kernel>, LabError> {
        if asked == NEWEST {
            let noted =
                fs::read_to_string(self.newest_note()).ok().filter(|release| self.kernel_folder(release).exists());
            return Ok(noted.map(|release| self.kernel_of(&release)));
        }
        Ok(choose(&self.releases_here(), asked).map(|release| self.kernel_of(&release)))
    }

    fn releases_here(&self) -> Vec<String> {
        // A cache that was never used has no such folder.
        let Ok(entries) = fs::read_dir(self.folder.join("kernels")) else { return Vec::new() };
        let mut releases: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        releases.sort_by_key(|release| order(release));
        releases
    }

    fn kernel_of(&self, release: &str) -> Kernel {
        let folder = self.kernel_folder(release);
        Kernel { release: release.to_owned(), image: folder.join("vmlinux"), modules: folder.join("modules") }
    }

    fn kernel_folder(&self, release: &str) -> PathBuf {
        self.folder.join("kernels").join(release)
    }

    fn newest_note(&self) -> PathBuf {
        self.folder.join("newest")
    }

    fn apt(&self) -> Result<Apt, LabError> {
        Apt::prepare(&self.folder.join("apt"), self.mirror.as_deref())
    }

    /// A folder beside the cache's own, so that what is finished can be renamed into place; it goes when it is dropped.
    fn partial(&self, name: &str) -> Result<tempfile::TempDir, LabError> {
        tempfile::Builder::new()
            .prefix(&format!("partial-{name}-"))
            .tempdir_in(&self.folder)
            .map_err(file_error(&self.folder))
    }

    /// Waits until no other process changes the cache.
    pub(crate) fn lock(&self) -> Result<File, LabError> {
        fs::create_dir_all(&self.folder).map_err(file_error(&self.folder))?;
        let path = self.folder.join("lock");
        let file = terrace_files::open_in_place(&path).map_err(file_error(&path))?;
        file.lock().map_err(file_error(&path))?;
        Ok(file)
    }
}

fn image_error(path: &Path, what: &str) -> LabError {
    LabError::Image { path: path.to_owned(), what: what.to_owned() }
}

/// The releases that have an image package for ordinary PCs.
fn releases(names: &[String]) -> Vec<String> {
    let releases = names.iter().filter_map(|name| name.strip_prefix("linux-image-"));
    let ordinary = releases.filter(|release| {
        let version = release.strip_suffix("-amd64").unwrap_or("");
        // linux-image-6.12-amd64 only depends on others; -cloud, -rt, -unsigned and -dbg are other builds.
        let is_whole = version.split('.').count() > 2;
        is_whole
            && version.starts_with(|first: char| first.is_ascii_digit())
            && !["cloud", "rt"].iter().any(|kind| version.ends_with(kind))
    });
    ordinary.map(str::to_owned).collect()
}

/// The newest release of the version asked for. 6.1 is not 6.12.
fn choose(releases: &[String], asked: &str) -> Option<String> {
    let fits = |release: &str| match release.strip_prefix(asked) {
        Some(rest) => rest.is_empty() || rest.starts_with(['.', '-', '+']),
        None => asked == NEWEST,
    };
    releases.iter().filter(|release| fits(release)).max_by_key(|release| order(release)).cloned()
}

fn newest_of_each(releases: &[String]) -> Vec<String> {
    let series = |release: &str| release.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    let mut all: Vec<String> = releases.iter().map(|release| series(release)).collect();
    all.sort_by_key(|series| order(series));
    all.dedup();
    all.iter().filter_map(|series| choose(releases, series)).collect()
}

/// Numbers in a release as numbers, so that 6.12.100 comes after 6.12.95.
fn order(release: &str) -> Vec<u64> {
    let version = release.strip_suffix("-amd64").unwrap_or(release);
    version.split(|part: char| !part.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// The two leading numbers of a release, such as (6, 12).
pub(crate) fn series(release: &str) -> (u64, u64) {
    let numbers = order(release);
    (numbers.first().copied().unwrap_or(0), numbers.get(1).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        let names = [
            "linux-image-6.1.0-47-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-56-rt-amd64",
            "linux-image-6.12-amd64",
            "linux-image-6.12.95+deb12-amd64",
            "linux-image-6.12.90+deb12.1-amd64",
            "linux-image-6.12.117+deb12-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-6.12.200+deb12-amd64-unsigned",
            "linux-image-7.2.13+deb14-amd64",
            "linux-image-amd64",
        ];
        names.map(str::to_owned).to_vec()
    }

    #[test]
    fn a_version_names_the_newest_of_its_releases() {
        let releases = releases(&names());
        let check =
            |asked: &str, expect: Option<&str>| assert_eq!(choose(&releases, asked).as_deref(), expect, "{asked}");
        check("6.1", Some("6.1.0-56-amd64"));
        check("6.12", Some("6.12.117+deb12-amd64"));
        check("6.12.95+deb12", Some("6.12.95+deb12-amd64"));
        check("6.12.90", Some("6.12.90+deb12.1-amd64"));
        check("6", Some("6.12.117+deb12-amd64"));
        check(NEWEST, Some("7.2.13+deb14-amd64"));
        check("5.10", None);
        assert_eq!(newest_of_each(&releases), ["6.1.0-56-amd64", "6.12.117+deb12-amd64", "7.2.13+deb14-amd64"]);
    }

    #[test]
    fn a_series_is_read_off_a_release() {
        assert_eq!(series("6.1.0-56-amd64"), (6, 1));
        assert_eq!(series("7.2.13+deb14-amd64"), (7, 2));
    }
}
