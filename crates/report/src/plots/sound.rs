//! Whether a drawing is sound: for tests of what draws.
//!
//! In: SVG. Out: what is wrong with it. Must not: be lenient; what is not finite or lies outside is a fault of the program that drew.

use super::raster::without_pictures;
use super::{INKS, hex};

/// What is wrong with the drawings of a figure, if anything.
pub fn fault(svgs: &str) -> Option<String> {
    svgs.split_inclusive("</svg>").filter(|svg| svg.contains("<svg")).find_map(fault_of_one)
}

fn fault_of_one(svg: &str) -> Option<String> {
    let svg = &without_pictures(svg).replace("href=\"#", "href=\"");
    for word in ["NaN", "inf", "\"-1\" height"] {
        if svg.contains(word) {
            return Some(format!("{word} in it"));
        }
    }
    // Everything drawn lies within the drawing, a little room for strokes aside.
    let Some(size) = svg.split("viewBox=\"0 0 ").nth(1).and_then(|rest| rest.split('"').next()) else {
        return Some("no size".to_owned());
    };
    let sizes: Vec<f64> = size.split(' ').filter_map(|side| side.parse().ok()).collect();
    let [width, height] = sizes[..] else { return Some(format!("the size {size}")) };
    for (attribute, limit) in [("x=\"", width), ("y=\"", height), ("x1=\"", width), ("y2=\"", height)] {
        for text in svg.split(&format!(" {attribute}")).skip(1) {
            let value: f64 = text.split('"').next()?.parse().ok()?;
            if !(-8.0..=limit + 8.0).contains(&value) {
                return Some(format!("{attribute}{value} lies outside"));
            }
        }
    }
    let known: Vec<String> = INKS.iter().map(|(light, _)| hex(*light)).collect();
    let inks = svg.split("=\"#").skip(1).map(|rest| format!("#{}", &rest[..6]));
    inks.into_iter().find(|ink| !known.contains(ink)).map(|ink| format!("{ink} has no dark counterpart"))
}
