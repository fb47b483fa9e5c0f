//! Rights: one model for the control socket and the HTTP server.
//!
//! In: the configuration's lists, the kernel's credentials of a peer, a token that the peer gives. Out: the highest right of these. Must
//! not: open connections, or trust anything a peer says of itself except a token.
//!
//! A right includes those below it. A peer of a Unix socket is identified by its credentials (SO_PEERCRED). A peer over TCP is not
//! identified, not even on the loopback interface, and has only the right of its token.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;
use terrace_linux::processes::{group_id, groups_of, user_id};

use anyhow::{Context, ensure};

use terrace_run::spec::value::ValueError;

/// The rights, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Whether the daemon is alive, and the protocol versions.
    Alive,
    /// Aggregate metrics: by tier and class, without pids, names of processes, addresses or heat.
    Metrics,
    /// All that the daemon shows.
    Read,
    /// Pause, resume and drain.
    Operate,
    /// Reload and set.
    Admin,
}

impl fmt::Display for Right {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Right::Alive => "alive",
            Right::Metrics => "metrics",
            Right::Read => "read",
            Right::Operate => "operate",
            Right::Admin => "admin",
        })
    }
}

/// A principal, as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A user by number.
    User(u32),
    /// A group by number: users whose primary group it is, and its members in /etc/group.
    Group(u32),
    /// Clients that know the token in this file.
    Token(PathBuf),
}

impl std::str::FromStr for Principal {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Principal, ValueError> {
        let nobody = |kind, name: &str| ValueError::Nobody { kind, name: name.to_owned() };
        match text.split_once(':') {
            Some(("user", name)) => user_id(name).map(Principal::User).ok_or_else(|| nobody("user", name)),
            Some(("group", name)) => group_id(name).map(Principal::Group).ok_or_else(|| nobody("group", name)),
            Some(("token", path)) if Path::new(path).is_absolute() => Ok(Principal::Token(path.into())),
            _ => Err(ValueError::text(text, " is not user:NAME, group:NAME or token:/PATH")),
        }
    }
}

/// The rights that the configuration adds to root's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Who may read.
    pub read: Vec<Principal>,
    /// Who may operate.
    pub operate: Vec<Principal>,
    /// Who may do everything.
    pub admin: Vec<Principal>,
}

/// A peer of a Unix socket, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user when it connected.
    pub user: u32,
    /// Its effective group.
    pub group: u32,
}

#[derive(Clone)]
enum Holder {
    User(u32),
    Group(u32),
    Token(Vec<u8>),
}

/// The rules of one moment, with the tokens read.
#[derive(Clone)]
pub struct Rules {
    owner: u32,
    holders: Vec<(Right, Holder)>,
    /// The right of an unidentified peer without a token.
    pub unknown: Right,
}

impl Default for Rules {
    /// Rules in which root and the daemon's own user may do everything, and all others see aggregate metrics.
    fn default() -> Rules {
        Rules { owner: rustix::process::geteuid().as_raw(), holders: Vec::new(), unknown: Right::Metrics }
    }
}

impl Rules {
    /// Reads the tokens.
    ///
    /// # Errors
    /// A token's file cannot be read, holds no token, or is not secret.
    pub fn from_grants(grants: &Grants) -> anyhow::Result<Rules> {
        let mut rules = Rules::default();
        let lists = [(Right::Read, &grants.read), (Right::Operate, &grants.operate), (Right::Admin, &grants.admin)];
        for (right, principals) in lists {
            for principal in principals {
                let holder = match principal {
                    Principal::User(user) => Holder::User(*user),
                    Principal::Group(group) => Holder::Group(*group),
                    Principal::Token(path) => Holder::Token(read_token(path, &format!("access.{right}"))?),
                };
                rules.holders.push((right, holder));
            }
        }
        Ok(rules)
    }

    /// Gives a right to a group.
    pub fn grant_group(&mut self, right: Right, group: u32) {
        self.holders.push((right, Holder::Group(group)));
    }

    /// Gives a right to clients that know a token.
    pub fn grant_token(&mut self, right: Right, token: Vec<u8>) {
        self.holders.push((right, Holder::Token(token)));
    }

    /// Whether any token gives a right.
    pub fn has_tokens(&self) -> bool {
        self.holders.iter().any(|(_, holder)| matches!(holder, Holder::Token(_)))
    }

    /// Whether the same tokens give the same rights.
    pub fn same_tokens(&self, other: &Rules) -> bool {
        let tokens = |rules: &Rules| -> Vec<(Right, Vec<u8>)> {
            let token = |(right, holder): &(Right, Holder)| match holder {
                Holder::Token(token) => Some((*right, token.clone())),
                _ => None,
            };
            rules.holders.iter().filter_map(token).collect()
        };
        tokens(self) == tokens(other)
    }

    /// The right of a peer, by its credentials, its groups and its token. The groups are looked up only if a rule needs them.
    pub fn right(&self, peer: Option<Peer>, groups: impl Fn() -> Vec<u32>, token: Option<&[u8]>) -> Right {
        let mut right = match peer {
            Some(peer) if peer.user == 0 || peer.user == self.owner => return Right::Admin,
            Some(_) => Right::Metrics,
            None => self.unknown,
        };
        let mut listed = None;
        for (given, holder) in &self.holders {
            // Compare every token, so that timing reveals nothing about a near match.
            let holds = match holder {
                Holder::Token(known) => token.is_some_and(|token| bool::from(token.ct_eq(known))),
                Holder::User(user) => peer.is_some_and(|peer| peer.user == *user),
                Holder::Group(group) => {
                    peer.is_some_and(|peer| peer.group == *group || listed.get_or_insert_with(&groups).contains(group))
                }
            };
            if holds {
                right = right.max(*given);
            }
        }
        right
    }

    /// The right of a peer by this machine's /etc/group.
    pub fn right_here(&self, peer: Option<Peer>, token: Option<&[u8]>) -> Right {
        self.right(peer, || peer.map_or_else(Vec::new, |peer| groups_of(peer.user)), token)
    }
}

/// Shorter tokens can be guessed: 32 hexadecimal digits are 128 bits.
const SHORTEST_TOKEN: usize = 32;

/// The most bytes read of a file with a secret. Certificate chains have about 10 KiB.
pub const LONGEST_FILE: u64 = 1 << 20;

/// Reads a secret file.
///
/// # Errors
/// As [`terrace_files::open_secret`]. `key` names the configuration's key.
pub fn read_secret(path: &Path, key: &str) -> anyhow::Result<Vec<u8>> {
    let told = || format!("{key} = \"{}\"", path.display());
    let mut bytes = Vec::new();
    let file = terrace_files::open_secret(path).with_context(told)?;
    file.take(LONGEST_FILE).read_to_end(&mut bytes).with_context(told)?;
    Ok(bytes)
}

/// Reads a token.
///
/// # Errors
/// As [`read_secret`], and when it is not one word of 32 characters or more.
pub fn read_token(path: &Path, key: &str) -> anyhow::Result<Vec<u8>> {
    let token = read_secret(path, key)?.trim_ascii().to_vec();
    ensure!(
        token.len() >= SHORTEST_TOKEN && token.iter().all(u8::is_ascii_graphic),
        "{key} = \"{}\": a token is one word of {SHORTEST_TOKEN} characters or more, as `openssl rand -hex 32` makes it",
        path.display()
    );
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let holders = vec![
            (Right::Read, Holder::Group(990)),
            (Right::Operate, Holder::User(1000)),
            (Right::Admin, Holder::Token(b"t".repeat(32))),
        ];
        Rules { owner: 500, holders, unknown: Right::Metrics }
    }

    #[test]
    fn a_stranger_has_aggregate_metrics_and_others_what_they_are_given() {
        let right = |user, group, listed: &[u32]| rules().right(Some(Peer { user, group }), || listed.to_vec(), None);
        assert_eq!(right(12345, 12345, &[]), Right::Metrics);
        assert_eq!((right(12345, 990, &[]), right(12345, 12345, &[27, 990])), (Right::Read, Right::Read));
        assert_eq!(right(1000, 1000, &[990]), Right::Operate, "the highest of several holds");
        assert_eq!((right(0, 0, &[]), right(500, 12345, &[])), (Right::Admin, Right::Admin));
    }

    #[test]
    fn a_peer_without_credentials_has_what_its_token_gives() {
        let right = |token: Option<&[u8]>| rules().right(None, Vec::new, token);
        assert_eq!(
            (right(None), right(Some(b"wrong")), right(Some(b""))),
            (Right::Metrics, Right::Metrics, Right::Metrics)
        );
        assert_eq!(right(Some(&b"t".repeat(32))), Right::Admin);
        assert_eq!(right(Some(&b"t".repeat(33))), Right::Metrics);
        assert_eq!(Rules { unknown: Right::Alive, ..rules() }.right(None, Vec::new, None), Right::Alive);
    }

    #[test]
    fn a_principal_is_a_user_a_group_or_a_token() {
        assert_eq!("user:root".parse::<Principal>().unwrap(), Principal::User(0));
        assert_eq!("user:1234".parse::<Principal>().unwrap(), Principal::User(1234));
        assert_eq!("group:root".parse::<Principal>().unwrap(), Principal::Group(0));
        assert_eq!(
            "token:/etc/terrace/token".parse::<Principal>().unwrap(),
            Principal::Token("/etc/terrace/token".into())
        );
        for wrong in ["root", "user:", "user:no-such-user", "token:relative", "group:no-such-group", ""] {
            assert!(wrong.parse::<Principal>().is_err(), "{wrong}");
        }
    }
}
