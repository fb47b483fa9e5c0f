//! Text on its way into a page or a drawing.
//!
//! In: any text, also from outside (a command line, a note). Out: the same as text of HTML or SVG. Must not: let it become markup.

/// Text that stays text in HTML, within elements and within attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are no legal HTML text, not even as references.
            character if character.is_control() && !matches!(character, '\n' | '\t') => escaped.push('\u{FFFD}'),
            character => escaped.push(character),
        }
    }
    escaped
}
