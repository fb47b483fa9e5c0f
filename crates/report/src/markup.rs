//! Text on its way into a page or a drawing.
//!
//! In: any text, also from outside (a command line, a note). Out: the same as text of HTML or SVG. Must not: let it become markup.

use terrace_core::text::visible_lines;

/// Text that stays text in HTML, within elements and within attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    // Characters that act on a browser, or are not legal there, are made visible.
    for character in visible_lines(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_neither_markup_nor_control() {
        assert_eq!(escape("\x1b]0;PWN\x07\x1b[2J<b>&\"'"), r"\x1b]0;PWN\x07\x1b[2J&lt;b&gt;&amp;&quot;&#39;");
    }
}
