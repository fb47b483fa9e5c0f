//! The page on synthetic reports: escaping, empty and single-point runs, nothing from outside.

use super::*;
use crate::example;

#[test]
fn texts_from_outside_stay_text() {
    let mut report = example::managed();
    report.notes.push("<b onclick='x'>\"note\"</b> & \u{1b}[31m".to_owned());
    report.moved_pages.failed_by_cause.insert("<i>cause</i>".to_owned(), 5);
    report.tracker_reasons.push("</section><img src=x>".to_owned());
    let page = page(&report).unwrap();
    for markup in ["<script", "<b ", "<i>", "<img", "\u{1b}"] {
        assert!(!page.contains(markup), "{markup:?} came through");
    }
    assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"));
    assert!(page.contains("{{facts}}"), "a command line that looks like the template's own names is left as it is");
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let page = page(&example::managed()).unwrap().replace("http://www.w3.org/2000/svg", "");
    assert!(page.contains("default-src 'none'") && page.contains("img-src data:"), "pictures are in the page itself");
    for word in ["http:", "https:", "url(", "src=", "@import", "<link", "<script"] {
        assert!(!page.contains(word), "{word:?} would fetch something");
    }
}

#[test]
fn every_part_of_the_template_is_filled_at_every_edge() {
    let mut reports = example::edges();
    reports.extend([("managed", example::managed()), ("observed", example::observed())]);
    for (name, report) in reports {
        let page = page(&report).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        // The example's command line holds the only braces that may be left.
        assert!(!page.replace("{{facts}}", "").contains("{{"), "{name}");
        for (opened, closed) in
            [("<table", "</table>"), ("<section", "</section>"), ("<figure", "</figure>"), ("<svg", "</svg>")]
        {
            assert_eq!(page.matches(opened).count(), page.matches(closed).count(), "{name}: {opened}");
        }
        assert_eq!(
            page.matches("<table").count(),
            page.matches("<caption>").count(),
            "{name}: each table has a caption"
        );
        assert!(!plots::without_pictures(&page).contains("NaN"), "{name}");
    }
}

#[test]
fn the_headline_and_the_answers_are_in_the_page() {
    let report = example::managed();
    let page = page(&report).unwrap();
    for sentence in [text::headline(&report), text::memory_sentence(&report), text::ages_sentence(&report)] {
        assert!(page.contains(&escape(&sentence)), "{sentence}");
    }
}
