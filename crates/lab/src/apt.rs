//! Packages from the Debian archive, without touching the host's own apt.
//!
//! In: the host's mirror and key ring, package names. Out: package files in the cache. Must not: install anything, or
//! change or lock the lists, the cache and the state of the host's apt: this one has its own of everything.
//!
//! The host's proxy and download settings (`Acquire::*`) are kept, its hooks are not: they would act on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{LabError, file_error};
use crate::tools::{output_of, text_of};

/// The Debian releases that the kernels come from: 6.1, 6.12, and the newest there is.
const SUITES: [&str; 3] = ["bookworm", "bookworm-backports", "sid"];
/// Kernels of a stable release are updated here first.
const SECURITY_SUITE: &str = "bookworm-security";
const KEY_RING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Package lists older than this are fetched again before something is looked up in them.
const LISTS_LAST: Duration = Duration::from_secs(24 * 3600);

/// An apt of our own in a folder of the cache.
#[derive(Debug)]
pub(crate) struct Apt {
    folder: PathBuf,
}

/// Where packages come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mirror {
    archive: String,
    security: Option<String>,
}

impl Apt {
    /// Writes the private configuration below `folder`. `mirror` overrides the one in the host's sources.
    pub(crate) fn prepare(folder: &Path, mirror: Option<&str>) -> Result<Apt, LabError> {
        let mirror = match mirror {
            Some(mirror) => Mirror { archive: mirror.trim_end_matches('/').to_owned(), security: None },
            None => host_mirror(Path::new("/etc/apt"))?,
        };
        if !Path::new(KEY_RING).exists() {
            return Err(LabError::Sources(format!(
                "{KEY_RING} is missing, so packages cannot be verified: `apt-get install debian-archive-keyring`"
            )));
        }
        let apt = Apt { folder: folder.to_owned() };
        for part in [
            "etc/parts",
            "etc/sources.list.d",
            "etc/preferences.d",
            "state/lists/partial",
            "cache/archives/partial",
            "got",
        ] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(file_error(&path))?;
        }
        apt.write("state/status", "")?;
        apt.write("etc/sources.list", &sources(&mirror))?;
        let kept = text_of(Command::new("apt-config").args(["dump", "Acquire"]), "apt")?;
        apt.write("apt.conf", &apt.configuration(&kept))?;
        Ok(apt)
    }

    /// All package names that begin with this. Fetches the lists if they are old or `refresh` says so.
    pub(crate) fn names(&self, prefix: &str, refresh: bool) -> Result<Vec<String>, LabError> {
        self.update(refresh)?;
        let text = text_of(self.command("apt-cache").args(["pkgnames", prefix]), "apt")?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }

    /// These packages and all that they depend on, as a release of Debian has them, each with its version; no kernel images.
    pub(crate) fn with_all_they_need(&self, names: &[&str], release: &str) -> Result<Vec<String>, LabError> {
        self.update(false)?;
        let mut command = self.command("apt-get");
        command.arg("-o").arg(format!("APT::Default-Release={release}"));
        command.args(["-qq", "--no-install-recommends", "--print-uris", "install"]).args(names);
        Ok(packages(&text_of(&mut command, "apt")?))
    }

    /// Downloads packages and unpacks them, one over the other, into the folder `into`.
    pub(crate) fn unpack(&self, packages: &[String], into: &Path) -> Result<(), LabError> {
        let got = self.folder.join("got");
        remove_files(&got)?;
        tracing::info!(count = packages.len(), first = packages.first(), "downloading");
        self.update(false)?;
        output_of(self.command("apt-get").current_dir(&got).arg("download").args(packages), "apt")?;
        fs::create_dir_all(into).map_err(file_error(into))?;
        for entry in fs::read_dir(&got).map_err(file_error(&got))? {
            let package = entry.map_err(file_error(&got))?.path();
            output_of(Command::new("dpkg-deb").arg("-x").arg(&package).arg(into), "dpkg")?;
        }
        remove_files(&got)
    }

    fn update(&self, refresh: bool) -> Result<(), LabError> {
        let stamp = self.folder.join("updated");
        let age = fs::metadata(&stamp).ok().and_then(|data| data.modified().ok()?.elapsed().ok());
        if !refresh && age.is_some_and(|age| age < LISTS_LAST) {
            return Ok(());
        }
        tracing::info!("fetching package lists");
        output_of(self.command("apt-get").args(["--error-on=any", "update"]), "apt")?;
        terrace_files::write(&stamp, "").map_err(file_error(&stamp))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("LC_ALL", "C");
        command
    }

    fn configuration(&self, host: &str) -> String {
        let folder = self.folder.display();
        let mut text = format!(
            "Dir::Etc \"{folder}/etc\";\nDir::Etc::parts \"{folder}/etc/parts\";\nDir::State \"{folder}/state\";\n\
             Dir::State::status \"{folder}/state/status\";\nDir::Cache \"{folder}/cache\";\n\
             APT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; }};\nAPT::Sandbox::User \"root\";\n\
             Acquire::Languages \"none\";\n"
        );
        let ours = ["Acquire::IndexTargets", "Acquire::Languages", "Acquire::CompressionTypes"];
        let kept =
            host.lines().filter(|line| line.starts_with("Acquire::") && !ours.iter().any(|our| line.starts_with(our)));
        kept.for_each(|line| text.extend([line, "\n"]));
        text
    }

    fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        let path = self.folder.join(name);
        terrace_files::write(&path, text).map_err(file_error(&path))
    }
}

fn remove_files(folder: &Path) -> Result<(), LabError> {
    for entry in fs::read_dir(folder).map_err(file_error(folder))? {
        let path = entry.map_err(file_error(folder))?.path();
        fs::remove_file(&path).map_err(file_error(&path))?;
    }
    Ok(())
}

fn sources(mirror: &Mirror) -> String {
    let line = |archive: &str, suite: &str| format!("deb [arch=amd64 signed-by={KEY_RING}] {archive} {suite} main\n");
    let mut text: String = SUITES.iter().map(|suite| line(&mirror.archive, suite)).collect();
    if let Some(security) = &mirror.security {
        text += &line(security, SECURITY_SUITE);
    }
    text
}

/// The Debian archive that the host itself uses.
fn host_mirror(etc: &Path) -> Result<Mirror, LabError> {
    let mut files = vec![etc.join("sources.list")];
    let folder = etc.join("sources.list.d");
    if let Ok(entries) = fs::read_dir(&folder) {
        let mut more: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        more.retain(|path| path.extension().is_some_and(|ending| ending == "list" || ending == "sources"));
        more.sort();
        files.extend(more);
    }
    let addresses: Vec<String> =
        files.iter().flat_map(|file| addresses(&fs::read_to_string(file).unwrap_or_default())).collect();
    let ending = |ending: &str| addresses.iter().find(|address| address.ends_with(ending)).cloned();
    match ending("/debian") {
        Some(archive) => Ok(Mirror { archive, security: ending("/debian-security") }),
        None => Err(LabError::Sources(format!(
            "no Debian archive (an address that ends with /debian) in {} or {}: give one with --mirror",
            files[0].display(),
            folder.display()
        ))),
    }
}

/// The addresses in a sources file of either form, without comments and without a slash at the end.
fn addresses(text: &str) -> Vec<String> {
    let words = text.lines().filter(|line| !line.trim_start().starts_with('#')).flat_map(str::split_whitespace);
    let addresses =
        words.filter(|word| ["http://", "https://", "file:/", "mirror+"].iter().any(|way| word.starts_with(way)));
    addresses.map(|address| address.trim_end_matches('/').to_owned()).collect()
}

/// The release of Debian whose compiler built a kernel: what apt takes for its default release.
pub(crate) fn debian_release(kernel: &str) -> &'static str {
    // 6.1.0-56-amd64 is bookworm's own, 6.12.117+deb12-amd64 a backport to it; the security archive counts with it.
    let stable = kernel.contains("+deb12") || kernel.starts_with("6.1.");
    if stable { "/^bookworm/" } else { "sid" }
}

/// The packages of `apt-get --print-uris`, as apt-get download takes them, without kernel images: those are only there because the
/// headers depend on them.
fn packages(uris: &str) -> Vec<String> {
    let files = uris.lines().filter_map(|line| line.split_whitespace().nth(1));
    let named = files.filter_map(|file| {
        let mut parts = file.split('_');
        let (name, version) = (parts.next()?, parts.next()?.replace("%3a", ":"));
        (!name.starts_with("linux-image")).then(|| format!("{name}={version}"))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_mirror_is_found_in_both_forms_of_sources() {
        let etc = tempfile::tempdir().unwrap();
        fs::create_dir(etc.path().join("sources.list.d")).unwrap();
        let list = etc.path().join("sources.list");
        fs::write(&list, "# deb http://old.example/debian x main\ndeb [arch=amd64] https://a.example/ubuntu/ x main\n")
            .unwrap();
        assert!(host_mirror(etc.path()).unwrap_err().to_string().contains("--mirror"));
        let sources =
            "Types: deb\nURIs: http://b.example/debian/\nSuites: bookworm\n\nURIs: http://b.example/debian-security\n";
        fs::write(etc.path().join("sources.list.d/debian.sources"), sources).unwrap();
        fs::write(etc.path().join("sources.list.d/other.disabled"), "deb http://c.example/debian x main\n").unwrap();
        let found = host_mirror(etc.path()).unwrap();
        assert_eq!(found.archive, "http://b.example/debian");
        assert_eq!(found.security.as_deref(), Some("http://b.example/debian-security"));
        fs::write(&list, "deb http://d.example/debian bookworm main\n").unwrap();
        assert_eq!(host_mirror(etc.path()).unwrap().archive, "http://d.example/debian");
    }

    #[test]
    fn the_private_configuration_keeps_the_proxy_and_drops_the_hooks() {
        let apt = Apt { folder: PathBuf::from("/cache/apt") };
        let host = "Acquire \"\";\nAcquire::http::Proxy \"http://proxy.example:3128\";\nAcquire::Languages:: \"de\";\n\
                    DPkg::Post-Invoke:: \"rm -rf /\";\n";
        let text = apt.configuration(host);
        assert!(text.contains("Acquire::http::Proxy \"http://proxy.example:3128\";"));
        assert!(!text.contains("Post-Invoke") && !text.contains("\"de\""));
        assert!(text.contains("Dir::State::status \"/cache/apt/state/status\";"));
    }

    #[test]
    fn packages_are_read_off_what_apt_would_fetch() {
        let uris = "'http://a.example/linux-headers-6.12.9-amd64_6.12.9-1~deb12u1_amd64.deb' linux-headers-6.12.9-amd64_6.12.9-1~deb12u1_amd64.deb 327 SHA256:0\n\
                    'http://a.example/gcc_4%3a12.2.0-3_amd64.deb' gcc_4%3a12.2.0-3_amd64.deb 5 SHA256:1\n\
                    'http://a.example/linux-image-6.12.9-amd64_6_amd64.deb' linux-image-6.12.9-amd64_6_amd64.deb 9 SHA256:2\n";
        assert_eq!(packages(uris), ["linux-headers-6.12.9-amd64=6.12.9-1~deb12u1", "gcc=4:12.2.0-3"]);
    }

    #[test]
    fn a_kernel_is_built_for_with_its_own_debians_compiler() {
        for (kernel, release) in
            [("6.1.0-56-amd64", "/^bookworm/"), ("6.12.117+deb12-amd64", "/^bookworm/"), ("7.2.13+deb14-amd64", "sid")]
        {
            assert_eq!(debian_release(kernel), release);
        }
    }
}
