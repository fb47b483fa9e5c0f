//! Outside text shown to a person: names of processes, paths, labels; and the nearest known name to a misspelt one.
//!
//! In: any text. Out: the same text, with every character that a terminal or a browser would act on made visible; the name that was
//! probably meant. Must not: change text without such characters.
//!
//! A program's user chooses its name, and root reads it. An escape sequence (ECMA-48) in it could set the terminal's title or wipe the
//! output, a line feed could add lines, and a bidirectional control could change the reading order of a line (Unicode TR #36, section 3.5).

use std::borrow::Cow;
use std::fmt::Write;

/// One line of text without active characters: control characters (C0, C1, DEL), line separators and bidirectional controls become escapes
/// such as `\n`, `\x1b` and `\u{202e}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, acts)
}

/// The same for formatted text of several lines: line feeds and tabs stay.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| !matches!(character, '\n' | '\t') && acts(character))
}

/// Whether a terminal or a browser acts on a character instead of showing it.
fn acts(character: char) -> bool {
    // Cc, then the separators and the bidirectional controls of Unicode (UAX #9, section 2).
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, acts: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        // Writing into a String does not fail.
        let _ = match character {
            _ if !acts(character) => {
                out.push(character);
                Ok(())
            }
            '\n' | '\r' | '\t' => write!(out, "{}", character.escape_default()),
            _ if character <= '\u{ff}' => write!(out, "\\x{:02x}", u32::from(character)),
            _ => write!(out, "{}", character.escape_unicode()),
        };
    }
    Cow::Owned(out)
}

/// How much alike a name and the one that was meant have to be (Jaro-Winkler, 0 to 1): clap suggests from 0.7 on by Jaro, which is
/// lower for the same pair.
const ALIKE: f64 = 0.8;

/// The name most like `given`, if one is like it.
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let alike = names.into_iter().map(|name| (strsim::jaro_winkler(&given, &name.to_lowercase()), name));
    // Of equals the first: `max_by` would give the last.
    alike
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .reduce(|one, other| if other.0 > one.0 { other } else { one })
        .map(|(_, name)| name)
}

/// What to say of a name that is none: "the nearest is flexmem; there are: age, flexmem, tpp".
pub fn instead(given: &str, names: &[&str]) -> String {
    let nearest = nearest(given, names.iter().copied());
    let hint = nearest.map_or_else(String::new, |name| format!("the nearest is {name}; "));
    format!("{hint}there are: {}", names.join(", "))
}

/// Values that were probably meant by one that was refused, in the order in which people mean them: a number with its unit, a tier with the
/// word before it. `takes` says whether the option takes a value.
pub fn meant(text: &str, takes: impl Fn(&str) -> bool) -> Vec<String> {
    /// The least number of bytes without a unit that is taken for MiB; a smaller one is of GiB.
    const RATHER_MIB: f64 = 64.0;
    /// The least time without a unit that may be of milliseconds.
    const PERHAPS_MILLISECONDS: f64 = 100.0;
    let text = text.trim();
    // The number at the end: all of "5", and that of "zram:2".
    let number = text.rsplit(':').next().and_then(|number| number.parse::<f64>().ok());
    let mut forms: Vec<String> = match number {
        Some(number) if number > 0.0 => {
            let bytes = if number < RATHER_MIB { "GiB" } else { "MiB" };
            let share = if number < 1.0 { format!("{}%", number * 100.0) } else { format!("{text}%") };
            let short = if number < PERHAPS_MILLISECONDS { None } else { Some(format!("{text}ms")) };
            short.into_iter().chain([format!("{text}s"), share, format!("{text}{bytes}")]).collect()
        }
        _ => Vec::new(),
    };
    let node = text.strip_prefix("node").unwrap_or(text);
    if !node.is_empty() && node.bytes().all(|letter| letter.is_ascii_digit()) {
        forms.push(format!("node:{node}"));
    } else {
        forms.push(format!("zram:{text}"));
    }
    if text.starts_with('/') {
        forms.push(format!("swap:{text}"));
    }
    if text.ends_with('%') {
        forms.push(format!("{text}/min"));
    }
    forms.push(text.replace('=', ":"));
    forms.retain(|form| form != text && takes(form));
    forms
}

/// "; did you mean --fast 25% or --fast 25GiB?", or nothing where nothing is known to be meant.
pub fn did_you_mean(before: &str, forms: &[String]) -> String {
    match forms {
        [] => String::new(),
        forms => {
            let lines: Vec<String> = forms.iter().map(|form| format!("{before}{form}")).collect();
            format!("; did you mean {}?", lines.join(" or "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_act_on_a_terminal() {
        let name = "\x1b]0;PWN\x07\x1b[2J";
        assert_eq!(visible(name), r"\x1b]0;PWN\x07\x1b[2J");
        assert_eq!(visible("two\nlines\r\t\u{9b}31m\u{7f}"), r"two\nlines\r\t\x9b31m\x7f");
        assert_eq!(visible("\u{202e}gpj.exe\u{2028}"), r"\u{202e}gpj.exe\u{2028}");
        assert_eq!(visible_lines("a\x1b[2J\nb"), "a\\x1b[2J\nb");
    }

    #[test]
    fn a_misspelt_name_is_met_with_the_nearest() {
        let names = ["age", "flexhm", "flexmem", "tpp", "tiering08"];
        assert_eq!(
            instead("flexmeme", &names),
            "the nearest is flexmem; there are: age, flexhm, flexmem, tpp, tiering08"
        );
        assert_eq!(nearest("TPP", names), Some("tpp"));
        assert_eq!(nearest("hotcold", ["scan-then-random", "hot-cold"]), Some("hot-cold"));
        assert_eq!(instead("zebra", &["age", "tpp"]), "there are: age, tpp");
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn ordinary_text_stays_as_it_is() {
        for text in ["redis-server", "größe 大きさ é", "/a b/c\\d", ""] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
            assert!(matches!(visible_lines(text), Cow::Borrowed(same) if same == text));
        }
    }
}
