//! Shaded cells as a picture: a PNG for each panel, a pixel for each cell.
//!
//! In: levels by column and row, and where columns and rows end. Out: indexed PNGs, which stand in a drawing where it left a place for
//! them. Must not: blend neighbours: a pixel has the ink of its level, the one in the legend, to the last bit.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use plotters::style::RGBColor;

use super::{HEAT, dark};

/// Pixels along an axis whose cells differ in size: those of a drawing, so that the smallest cell that it can show is one.
const UNEVEN: usize = 1600;
/// Index of a cell where nothing was seen; the paper shows through it.
const UNSEEN: u8 = HEAT.len() as u8;

/// Cells of a panel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cells {
    /// Where the columns start and the last ends, from left to right, in any unit.
    pub across: Vec<f64>,
    /// The same of the rows, from the top down.
    pub down: Vec<f64>,
    /// `levels[column][row]`: an index of [`HEAT`]; `None` where nothing was seen.
    pub levels: Vec<Vec<Option<usize>>>,
}

/// The papers a picture is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Papers<'a> {
    /// A page, which shows the picture that suits its colours; the name that the pictures' ids start with.
    LightAndDark(&'a str),
    /// A picture that stands by itself.
    Light,
}

impl Cells {
    /// The picture as a PNG of four bits a pixel.
    ///
    /// # Errors
    /// When it cannot be encoded, which would be a fault of this program.
    pub(super) fn png(&self, on_dark: bool) -> anyhow::Result<Vec<u8>> {
        let (columns, rows) = (pixels(&self.across), pixels(&self.down));
        let mut data = Vec::with_capacity(columns.len().div_ceil(2) * rows.len());
        for &row in &rows {
            let index = |column: &usize| {
                let level = self.levels.get(*column).and_then(|levels| *levels.get(row)?);
                level.map_or(UNSEEN, |level| level.min(HEAT.len() - 1) as u8)
            };
            data.extend(columns.chunks(2).map(|pair| index(&pair[0]) << 4 | pair.get(1).map_or(0, index)));
        }
        let ink = |light: RGBColor| if on_dark { dark(light) } else { light };
        let palette: Vec<u8> = HEAT
            .iter()
            .map(|light| ink(*light))
            .chain([RGBColor(0, 0, 0)])
            .flat_map(|ink| [ink.0, ink.1, ink.2])
            .collect();
        let mut transparency = vec![u8::MAX; HEAT.len()];
        transparency.push(0);
        let mut png = Vec::new();
        let mut encoder = png::Encoder::new(&mut png, columns.len() as u32, rows.len() as u32);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Four);
        encoder.set_palette(palette);
        encoder.set_trns(transparency);
        encoder.set_compression(png::Compression::High);
        encoder.set_filter(png::Filter::NoFilter);
        let mut writer = encoder.write_header().context("the head of a picture")?;
        writer.write_image_data(&data).context("a picture")?;
        writer.finish().context("the end of a picture")?;
        Ok(png)
    }

    /// The same with half as many columns and, if `rows` says so, rows: of four cells the highest level stays.
    pub(super) fn halved(&self, rows: bool) -> Cells {
        let high = if rows { 2 } else { 1 };
        let every = |edges: &[f64], step: usize| -> Vec<f64> {
            let cells = edges.len().saturating_sub(1);
            (0..cells).step_by(step).chain([cells]).filter_map(|edge| edges.get(edge).copied()).collect()
        };
        let levels = self.levels.chunks(2).map(|pair| {
            let most = pair.iter().map(Vec::len).max().unwrap_or(0);
            let cell = |from: usize| {
                pair.iter().flat_map(|column| column.iter().skip(from).take(high)).flatten().copied().max()
            };
            (0..most).step_by(high).map(cell).collect()
        });
        Cells { across: every(&self.across, 2), down: every(&self.down, high), levels: levels.collect() }
    }
}

/// The cell that each pixel of an axis shows.
fn pixels(edges: &[f64]) -> Vec<usize> {
    let cells = edges.len().saturating_sub(1);
    let (Some(&first), Some(&last)) = (edges.first(), edges.last()) else { return Vec::new() };
    let one = (last - first) / cells.max(1) as f64;
    let even =
        edges.iter().enumerate().all(|(index, edge)| (edge - first - one * index as f64).abs() <= 0.02 * one.abs());
    if even {
        return (0..cells).collect();
    }
    let share = |edge: f64| (edge - first) / (last - first);
    let of = |pixel: usize| {
        let at = (pixel as f64 + 0.5) / UNEVEN as f64;
        edges.partition_point(|edge| share(*edge) <= at).clamp(1, cells) - 1
    };
    (0..UNEVEN).map(of).collect()
}

/// The ink of the rectangle that a drawing leaves for the picture of this number.
pub(super) fn place(number: usize) -> RGBColor {
    RGBColor(0xFE, (number >> 8) as u8, number as u8)
}

/// Where a picture lies in a drawing: left, top, width, height.
pub(super) type Place = [f64; 4];

/// Puts the pictures where the drawing left places for them, and says where that is.
///
/// # Errors
/// When a place is missing, or a picture cannot be encoded: faults of this program.
pub(super) fn placed(mut svg: String, cells: &[Cells], papers: Papers<'_>) -> anyhow::Result<(String, Vec<Place>)> {
    let mut places = Vec::with_capacity(cells.len());
    for (number, cells) in cells.iter().enumerate() {
        let (range, [left, top, width, height]) = place_of(&svg, number)?;
        let kinds: &[(&str, bool)] = match papers {
            Papers::LightAndDark(_) => &[("light", false), ("dark", true)],
            Papers::Light => &[("", false)],
        };
        let mut images = String::new();
        for (class, on_dark) in kinds {
            let named = match papers {
                Papers::LightAndDark(name) => format!(" class=\"{class}\" id=\"{}\"", name_of(name, number, class)),
                Papers::Light => String::new(),
            };
            images.push_str(&format!(
                "<image{named} x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\" \
                 style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>",
                STANDARD.encode(cells.png(*on_dark)?)
            ));
        }
        svg.replace_range(range, &images);
        places.push([left, top, width, height]);
    }
    Ok((svg, places))
}

/// Shows the pictures of the drawing `name`, where they lie at `places`, in another one, where that left places for them.
///
/// # Errors
/// When a place is missing: a fault of this program.
pub(super) fn placed_again(mut svg: String, name: &str, places: &[Place]) -> anyhow::Result<String> {
    for (number, from) in places.iter().enumerate() {
        let (range, to) = place_of(&svg, number)?;
        let (across, down) = (to[2] / from[2], to[3] / from[3]);
        let (left, top) = (to[0] - from[0] * across, to[1] - from[1] * down);
        let uses = ["light", "dark"].map(|class| {
            let picture = name_of(name, number, class);
            format!(
                "<use href=\"#{picture}\" transform=\"translate({left:.3} {top:.3}) scale({across:.6} {down:.6})\"/>"
            )
        });
        svg.replace_range(range, &uses.concat());
    }
    Ok(svg)
}

/// The id of a picture.
fn name_of(drawing: &str, number: usize, class: &str) -> String {
    format!("{drawing}-{number}-{class}")
}

/// The rectangle that a drawing left for the picture of this number: where it stands in the text, and in the drawing.
fn place_of(svg: &str, number: usize) -> anyhow::Result<(std::ops::Range<usize>, Place)> {
    let ink = format!("fill=\"{}\"", super::hex(place(number)));
    let at = svg.find(&ink).with_context(|| format!("the drawing has no place for picture {number}"))?;
    let start = svg[..at].rfind("<rect ").context("a place is a rectangle")?;
    let end = at + svg[at..].find("/>").context("a rectangle has an end")? + 2;
    let corner = |name: &str| -> anyhow::Result<f64> {
        let value = svg[start..end].split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split('"').next());
        value.context("a rectangle has corners")?.parse().context("a corner is a number")
    };
    Ok((start..end, [corner("x")?, corner("y")?, corner("width")?, corner("height")?]))
}

/// A drawing without the bytes of its pictures, which spell any short word by chance.
pub fn without_pictures(page: &str) -> String {
    let mut parts = page.split("base64,");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |page, part| page + part.split_once('"').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(png: &[u8]) -> (u32, u32, Vec<u8>) {
        let mut decoder = png::Decoder::new(std::io::Cursor::new(png));
        decoder.set_transformations(png::Transformations::EXPAND);
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!(info.color_type, png::ColorType::Rgba);
        (info.width, info.height, pixels)
    }

    fn three_by_two() -> Cells {
        let levels = vec![vec![Some(0), Some(6)], vec![Some(3), None], vec![Some(1), Some(2)]];
        Cells { across: vec![0.0, 1.0, 2.0, 3.0], down: vec![0.0, 5.0, 10.0], levels }
    }

    #[test]
    fn a_cell_is_a_pixel_of_its_ink_on_both_papers() {
        for on_dark in [false, true] {
            let (width, height, pixels) = decoded(&three_by_two().png(on_dark).unwrap());
            assert_eq!((width, height), (3, 2));
            for (place, level) in [Some(0), Some(3), Some(1), Some(6), None, Some(2)].into_iter().enumerate() {
                let pixel = &pixels[place * 4..place * 4 + 4];
                let ink = level.map(|level: usize| if on_dark { dark(HEAT[level]) } else { HEAT[level] });
                match ink {
                    Some(ink) => assert_eq!(pixel, [ink.0, ink.1, ink.2, 255], "{place}"),
                    None => assert_eq!(pixel[3], 0, "{place} is the paper"),
                }
            }
        }
    }

    #[test]
    fn cells_of_different_size_take_their_share_of_pixels() {
        let shown = pixels(&[0.0, 1.0, 4.0]);
        assert_eq!((shown.len(), shown.iter().filter(|cell| **cell == 0).count()), (UNEVEN, UNEVEN / 4));
        assert_eq!(pixels(&[2.0, 4.0, 6.0]), [0, 1]);
        assert!(pixels(&[]).is_empty() && pixels(&[1.0]).is_empty());
    }

    #[test]
    fn halving_keeps_what_stands_out_and_both_ends() {
        let half = three_by_two().halved(true);
        assert_eq!(half.levels, [[Some(6)], [Some(2)]]);
        assert_eq!((half.across, half.down), (vec![0.0, 2.0, 3.0], vec![0.0, 10.0]));
        assert_eq!(three_by_two().halved(false).levels[0], [Some(3), Some(6)]);
    }

    #[test]
    fn pictures_stand_where_the_drawing_left_a_place() {
        let drawing =
            "<g><rect x=\"1\" y=\"2\" width=\"30\" height=\"40\" opacity=\"1\" fill=\"#FE0000\" stroke=\"none\"/></g>";
        let (placed_twice, places) =
            placed(drawing.to_owned(), &[three_by_two()], Papers::LightAndDark("heat")).unwrap();
        assert_eq!(placed_twice.matches(" x=\"1\" y=\"2\" width=\"30\" height=\"40\"").count(), 2);
        assert!(!placed_twice.contains("<rect") && placed_twice.ends_with("</g>"));
        let (alone, _) = placed(drawing.to_owned(), &[three_by_two()], Papers::Light).unwrap();
        assert_eq!(alone.matches("<image").count(), 1);
        assert!(placed(String::new(), &[three_by_two()], Papers::Light).is_err());
        // In a narrower drawing they are the same pictures, moved and shrunk.
        let narrow = drawing.replace("\"1\" y", "\"4\" y").replace("\"30\"", "\"15\"");
        let narrow = placed_again(narrow, "heat", &places).unwrap();
        assert!(
            narrow
                .contains("<use href=\"#heat-0-dark\" transform=\"translate(3.500 0.000) scale(0.500000 1.000000)\"/>"),
            "{narrow}"
        );
        assert!(placed_twice.contains("id=\"heat-0-dark\"") && !narrow.contains("<image"));
        assert!(placed_again(String::new(), "heat", &places).is_err());
    }
}
