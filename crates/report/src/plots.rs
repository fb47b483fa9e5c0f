//! The plots of a report, as SVG to stand inside its page.
//!
//! In: a [`Report`]. Out: a [`Figure`] for each question a reader has: question, answer in words, legend, drawing. Must not:
//! load a font or any other file, or put a number that is not finite into a drawing.
//!
//! The plots are drawn in the colours of [`INKS`] for light paper. In a dark page the style sheet that [`css`] writes replaces
//! each colour by its dark counterpart, by the attribute it stands in; so one drawing serves both.

mod heat;
pub mod raster;
pub mod shades;
pub mod sound;
mod tiers;

pub use raster::without_pictures;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use self::raster::{Cells, Papers};
use super::{Report, units};

/// One plot with all that makes it understandable.
pub struct Figure {
    /// Its id in the page.
    pub id: &'static str,
    /// What it answers.
    pub question: &'static str,
    /// The answer in a sentence; also the description of the drawing.
    pub answer: String,
    /// How the drawing is to be read, where its axes and its legend do not say it all.
    pub reading: String,
    /// What the colours mean.
    pub legend: Vec<Legend>,
    /// The drawing; `None` where nothing was recorded to draw.
    pub svg: Option<String>,
}

impl Figure {
    /// Where there is nothing to draw, and why.
    pub fn without_drawing(id: &'static str, question: &'static str, answer: impl Into<String>) -> Figure {
        Figure { id, question, answer: answer.into(), reading: String::new(), legend: Vec::new(), svg: None }
    }
}

/// An entry of a legend.
pub struct Legend {
    /// Its colour.
    pub ink: RGBColor,
    /// What it shows.
    pub label: String,
    /// Whether it is drawn as a line.
    pub line: bool,
}

impl Legend {
    /// An area, or a bar.
    pub fn area(ink: RGBColor, label: impl Into<String>) -> Legend {
        Legend { ink, label: label.into(), line: false }
    }

    /// A line.
    pub fn line(ink: RGBColor, label: impl Into<String>) -> Legend {
        Legend { ink, label: label.into(), line: true }
    }
}

/// The page itself; a rim of it parts lines from the areas they cross.
pub const PAPER: RGBColor = RGBColor(0xFF, 0xFF, 0xFE);
/// Letters.
pub const TEXT: RGBColor = RGBColor(0x3B, 0x40, 0x48);
/// The lines behind a plot.
pub const GRID: RGBColor = RGBColor(0xE3, 0xE6, 0xEA);
/// Axes and their marks.
pub const AXIS: RGBColor = RGBColor(0x9A, 0xA1, 0xAB);
/// Fast memory.
pub const FAST: RGBColor = RGBColor(0x2F, 0x6D, 0xB5);
/// Slower memory.
pub const SLOW: RGBColor = RGBColor(0xF0, 0xB9, 0x52);
/// Resident memory.
pub const RESIDENT: RGBColor = RGBColor(0x14, 0x16, 0x1A);
/// What compressed memory occupies.
pub const OCCUPIED: RGBColor = RGBColor(0xB0, 0x3A, 0x1E);
/// Times in which page-outs were stopped.
pub const STOPPED: RGBColor = RGBColor(0x8E, 0x7C, 0xC3);
/// Times in which page-outs were limited to the bound.
pub const LIMITED: RGBColor = RGBColor(0x8F, 0xC9, 0xC1);
/// Pages that went to slower memory.
pub const DEMOTED: RGBColor = RGBColor(0xB9, 0x77, 0x0E);
/// Pages that came to faster memory.
pub const PROMOTED: RGBColor = RGBColor(0x2A, 0x78, 0xC0);
/// Pages that came back by a fault.
pub const REFAULTS: RGBColor = RGBColor(0xC0, 0x2F, 0x4A);
/// A further line.
pub const FOREST: RGBColor = RGBColor(0x2E, 0x84, 0x5A);
/// The separators between ranges of addresses in the heat map.
pub const SEPARATOR: RGBColor = RGBColor(0x6A, 0x71, 0x7C);
/// Accessed shares from none to all; on light paper much is dark, on dark paper much is bright.
pub const HEAT: [RGBColor; 7] = [
    RGBColor(0xEC, 0xEE, 0xF1),
    RGBColor(0xFB, 0xE3, 0xB5),
    RGBColor(0xFC, 0xC0, 0x6F),
    RGBColor(0xF6, 0x93, 0x45),
    RGBColor(0xDF, 0x5B, 0x2C),
    RGBColor(0xAC, 0x2A, 0x24),
    RGBColor(0x66, 0x0F, 0x1D),
];

/// Every colour a plot may use, and what it becomes in a dark page. No two are alike, so that each can be found by its value.
pub const INKS: [(RGBColor, RGBColor); 22] = [
    (PAPER, RGBColor(0x14, 0x17, 0x1B)),
    (TEXT, RGBColor(0xD3, 0xD7, 0xDD)),
    (GRID, RGBColor(0x2F, 0x35, 0x3E)),
    (AXIS, RGBColor(0x6C, 0x75, 0x82)),
    (FAST, RGBColor(0x4F, 0x93, 0xE0)),
    (SLOW, RGBColor(0xB9, 0x83, 0x22)),
    (RESIDENT, RGBColor(0xFF, 0xFF, 0xFF)),
    (OCCUPIED, RGBColor(0xFF, 0x8A, 0x65)),
    (STOPPED, RGBColor(0xA7, 0x94, 0xE0)),
    (LIMITED, RGBColor(0x4E, 0x8F, 0x86)),
    (DEMOTED, RGBColor(0xE5, 0xA8, 0x3B)),
    (PROMOTED, RGBColor(0x62, 0xA8, 0xF0)),
    (REFAULTS, RGBColor(0xFF, 0x6B, 0x85)),
    (FOREST, RGBColor(0x58, 0xC4, 0x8C)),
    (SEPARATOR, RGBColor(0x9A, 0xA3, 0xB0)),
    (HEAT[0], RGBColor(0x22, 0x27, 0x2F)),
    (HEAT[1], RGBColor(0x45, 0x1E, 0x4F)),
    (HEAT[2], RGBColor(0x7A, 0x24, 0x5C)),
    (HEAT[3], RGBColor(0xB5, 0x35, 0x4E)),
    (HEAT[4], RGBColor(0xE4, 0x5F, 0x35)),
    (HEAT[5], RGBColor(0xF9, 0xA2, 0x3A)),
    (HEAT[6], RGBColor(0xFC, 0xEE, 0xA0)),
];

/// Plots are drawn at twice the size they are shown at, because the backend rounds to whole pixels.
pub const WIDTH: u32 = 1840;
/// The width of the same plot for a telephone, where it is shown at half the size, too.
pub const NARROW_WIDTH: u32 = 740;
/// Height of an ordinary plot.
pub const HEIGHT: u32 = 600;
/// Size of text in a drawing, in the backend's measure, which is 1.24 times the height in pixels.
pub const TEXT_SIZE: u32 = 32;
/// Most points of a timeline that are drawn: about one for every other pixel.
pub const MOST_POINTS: usize = 800;
/// Most points of all lines of a wide figure; a narrow one has half as many. Both take some 160 kB of a page.
pub const MOST_POINTS_OF_ALL: usize = 8_000;
/// Most panels of a figure: nobody compares more, and a page of them stays below 1 MB.
pub const MOST_PANELS: usize = 24;
/// A wide plot is never shown narrower, in pixels of a page; a narrower screen shows the narrow one. Text of [`TEXT_SIZE`] then has 11 pixels.
pub const LEAST_WIDTH: u32 = 800;
/// The same of a narrow plot: that of the narrowest telephone.
pub const LEAST_NARROW_WIDTH: u32 = 320;
/// Margins of a page beside its plots, in pixels, left and right together.
pub const PAGE_MARGINS: u32 = 40;

/// What a drawing is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sheet {
    /// A page on a screen or on paper.
    Wide,
    /// A telephone.
    Narrow,
}

impl Sheet {
    /// One of two, by the sheet.
    pub fn pick<T>(self, wide: T, narrow: T) -> T {
        match self {
            Sheet::Wide => wide,
            Sheet::Narrow => narrow,
        }
    }
}

/// Where a plot is drawn.
pub type Drawing<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// All plots of a report.
///
/// # Errors
/// When a plot cannot be drawn, which would be a fault of this program.
pub fn figures(report: &Report) -> anyhow::Result<Vec<Figure>> {
    let mut figures = vec![tiers::fast_and_slow(report)?];
    // A run that only watched has no moves to ask about.
    if !super::text::is_observation(report) {
        figures.push(tiers::moves(report)?);
        figures.push(tiers::refaults(report)?);
    }
    figures.extend([heat::heat_map(report)?, heat::working_set(report)?, heat::ages(report)?]);
    Ok(figures)
}

/// The style sheet that gives the inks of a drawing their dark counterparts.
pub fn css() -> String {
    let mut css = format!(
        ".plot > .wide {{ min-width: {LEAST_WIDTH}px; }}\n\
         .plot > .narrow {{ display: none; min-width: {LEAST_NARROW_WIDTH}px; max-width: 32rem; }}\n\
         @media screen and (max-width: {}px) {{ .plot > .wide {{ display: none; }} .plot > .narrow {{ display: block; }} }}\n\
         image.dark {{ display: none; }}\n\
         @media (prefers-color-scheme: dark) {{\nimage.light {{ display: none; }} image.dark {{ display: inline; }}\n",
        LEAST_WIDTH + PAGE_MARGINS - 1
    );
    for (light, dark) in INKS {
        let (light, dark) = (hex(light), hex(dark));
        css.push_str(&format!(
            "svg [fill=\"{light}\"], .key[fill=\"{light}\"] {{ fill: {dark}; }} svg [stroke=\"{light}\"] {{ stroke: {dark}; }}\n"
        ));
    }
    css.push_str("}\n");
    css
}

/// What an ink becomes in a dark page.
pub fn dark(light: RGBColor) -> RGBColor {
    INKS.iter().find(|(ink, _)| *ink == light).map_or(light, |(_, dark)| *dark)
}

/// The first panels, of which there are at most [`MOST_PANELS`]; `answer` says if that leaves some out.
pub fn shown<'a, T>(panels: &'a [T], what: &str, answer: &mut String) -> &'a [T] {
    if panels.len() > MOST_PANELS {
        *answer += &format!(" The first {MOST_PANELS} of {} {what} are shown.", panels.len());
    }
    &panels[..panels.len().min(MOST_PANELS)]
}

/// The colour as the backend writes it, which the style sheet must match to the letter.
pub fn hex(ink: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", ink.0, ink.1, ink.2)
}

/// Draws for a page: wide and narrow, of which the style sheet shows one. `heights` are those of both.
pub fn drawn(
    id: &str,
    title: &str,
    description: &str,
    heights: [u32; 2],
    draw: impl Fn(&Drawing<'_>, Sheet) -> anyhow::Result<()>,
) -> anyhow::Result<Option<String>> {
    drawn_with(id, title, description, heights, &[], draw)
}

/// The same with pictures in the places that the drawing leaves for them.
pub fn drawn_with(
    id: &str,
    title: &str,
    description: &str,
    heights: [u32; 2],
    pictures: &[Cells],
    draw: impl Fn(&Drawing<'_>, Sheet) -> anyhow::Result<()>,
) -> anyhow::Result<Option<String>> {
    let body = body(id, (WIDTH, heights[0]), |root| draw(root, Sheet::Wide))?;
    let (body, places) = raster::placed(body, pictures, Papers::LightAndDark(id))?;
    let wide = framed(id, " class=\"wide\"", (title, description), (WIDTH, heights[0]), &body);
    let small = format!("{id}-narrow");
    let body = self::body(&small, (NARROW_WIDTH, heights[1]), |root| draw(root, Sheet::Narrow))?;
    // The pictures are large, so the narrow drawing refers to those of the wide one.
    let body = raster::placed_again(body, id, &places)?;
    let narrow = framed(&small, " class=\"narrow\"", (title, description), (NARROW_WIDTH, heights[1]), &body);
    Ok(Some(wide + &narrow))
}

/// A drawing that stands by itself, on light paper.
pub fn drawn_alone(
    id: &str,
    title: &str,
    description: &str,
    height: u32,
    pictures: &[Cells],
    draw: impl FnOnce(&Drawing<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Option<String>> {
    let (body, _) = raster::placed(body(id, (WIDTH, height), draw)?, pictures, Papers::Light)?;
    Ok(Some(framed(id, "", (title, description), (WIDTH, height), &body)))
}

/// What is drawn, without the opening tag.
pub fn body(
    id: &str,
    size: (u32, u32),
    draw: impl FnOnce(&Drawing<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&root)?;
        root.present().map_err(failed)?;
    }
    // The opening tag fixes the size in pixels and has no room for a title; everything after it is the drawing.
    let body = svg.split_once('>').map(|(_, body)| body).ok_or_else(|| anyhow!("the plot {id:?} came out empty"))?;
    // What nearly all text says is said once; an opacity of 1 and no stroke are what is drawn without a word.
    Ok(body.replace(&font(), "").replace(" opacity=\"1\"", "").replace(" stroke=\"none\"", ""))
}

/// Makes a drawing scale with the page and speak to those who cannot see it.
pub fn framed(
    id: &str,
    class: &str,
    (title, description): (&str, &str),
    (width, height): (u32, u32),
    body: &str,
) -> String {
    let (title, description) = (super::markup::escape(title), super::markup::escape(description));
    format!(
        "<svg{class} viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{id}-title {id}-description\"{} \
         xmlns=\"http://www.w3.org/2000/svg\"><title id=\"{id}-title\">{title}</title>\
         <desc id=\"{id}-description\">{description}</desc>{body}",
        font()
    )
}

/// The font of [`text`] as the backend writes it.
pub fn font() -> String {
    format!(" font-family=\"sans-serif\" font-size=\"{}\"", f64::from(TEXT_SIZE) / 1.24)
}

/// The backend writes to memory and its errors borrow from it, so only their words are kept.
pub fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("a plot could not be drawn: {error}")
}

/// The style of all text in a drawing.
pub fn text() -> TextStyle<'static> {
    ("sans-serif", TEXT_SIZE).into_font().color(&TEXT)
}

/// Text aligned at its right end and its middle, for labels beside an axis.
pub fn text_at(horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    text().pos(Pos::new(horizontal, vertical))
}

/// A drawing with two linear axes.
pub type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Room around a chart, but for its right, where an ordinary one has more.
pub const MARGIN: u32 = 10;
/// Room at the right, for half a label of the axis.
pub const RIGHT: u32 = 40;

/// Grid, axes and labels, and the room around them.
pub struct Mesh<'a> {
    /// Its name, above it.
    pub caption: Option<&'a str>,
    /// Room right of the chart.
    pub right: u32,
    /// Room for the labels left of the chart.
    pub left: u32,
    /// Labels along the axis below, about.
    pub x_labels: usize,
    /// Labels along the axis at the left, about; 0 for no such axis.
    pub y_labels: usize,
    /// What a label below says.
    pub x_format: &'a dyn Fn(&f64) -> String,
    /// What a label at the left says.
    pub y_format: &'a dyn Fn(&f64) -> String,
    /// The axis below.
    pub x_name: &'a str,
    /// The axis at the left.
    pub y_name: &'a str,
}

impl<'a> Mesh<'a> {
    /// What most charts have: labels in the width of the sheet.
    pub fn of(sheet: Sheet, x_name: &'a str, y_name: &'a str) -> Mesh<'a> {
        Mesh {
            caption: None,
            right: RIGHT,
            left: sheet.pick(170, 150),
            x_labels: sheet.pick(12, 6),
            y_labels: 6,
            x_format: &|value| short(*value),
            y_format: &|value| short(*value),
            x_name,
            y_name,
        }
    }

    /// A chart of these ranges, with the mesh drawn.
    pub fn chart<'b>(
        &self,
        area: &Drawing<'b>,
        x: std::ops::Range<f64>,
        y: std::ops::Range<f64>,
    ) -> anyhow::Result<Chart<'a, 'b>> {
        let mut builder = ChartBuilder::on(area);
        if let Some(caption) = self.caption {
            builder.caption(caption, text());
        }
        builder.margin(MARGIN).margin_right(self.right).x_label_area_size(84).y_label_area_size(self.left);
        let mut chart = builder.build_cartesian_2d(x, y).map_err(failed)?;
        self.draw(&mut chart)?;
        Ok(chart)
    }

    /// Draws axes, marks and names.
    pub fn draw<X, Y>(&self, chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>) -> anyhow::Result<()>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh()
            .bold_line_style(GRID.stroke_width(2))
            .light_line_style(TRANSPARENT)
            .axis_style(AXIS.stroke_width(2))
            .label_style(text())
            .axis_desc_style(text())
            .x_labels(self.x_labels)
            .y_labels(self.y_labels)
            .x_label_formatter(self.x_format)
            .y_label_formatter(self.y_format)
            .x_desc(self.x_name)
            .y_desc(self.y_name);
        if self.y_labels == 0 {
            mesh.disable_y_mesh().disable_y_axis();
        }
        mesh.draw().map_err(failed)
    }
}

/// An axis in a unit that keeps its labels short.
pub struct Scale {
    divisor: f64,
    /// Its name.
    pub unit: &'static str,
}

impl Scale {
    /// For time since the start.
    pub fn of_time(end_seconds: f64) -> Scale {
        match end_seconds {
            end if end >= 4.0 * 3600.0 => Scale { divisor: 3600.0, unit: "h" },
            end if end >= 600.0 => Scale { divisor: 60.0, unit: "min" },
            _ => Scale { divisor: 1.0, unit: "s" },
        }
    }

    /// For memory.
    pub fn of_bytes(most: u64) -> Scale {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        // 1.5 of a unit is where its smaller neighbour begins to read worse.
        let step = (0..4).find(|&step| most < 1536_u64 << (10 * step)).unwrap_or(4);
        Scale { divisor: (1_u64 << (10 * step)) as f64, unit: UNITS[step as usize] }
    }

    /// The value in this unit.
    pub fn of(&self, value: f64) -> f64 {
        value / self.divisor
    }
}

/// Who has most on average, and who least; `none` where nobody has any.
pub fn most_and_least(names: &[&str], share: impl Fn(&str) -> Option<f64>, none: &str) -> String {
    let mut shares: Vec<(&str, f64)> = names.iter().filter_map(|name| Some((*name, share(name)?))).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    match shares.as_slice() {
        [] => none.to_owned(),
        [(only, share)] => format!("{} under {only}, on average.", units::percent(*share)),
        [(best, most), .., (last, least)] => {
            format!("{} under {best} on average, {} under {last}.", units::percent(*most), units::percent(*least))
        }
    }
}

/// A tick's number without needless digits.
pub fn short(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    if rounded >= 1000.0 { units::count(rounded.round() as u64) } else { format!("{rounded}") }
}

/// The name of an axis of simulated time.
pub fn full_size_time(sheet: Sheet, time: &Scale) -> String {
    format!("{} ({})", sheet.pick("time since the start, at full size", "time, at full size"), time.unit)
}

/// The top of an axis for values up to `most`: some air above, and never an empty range.
pub fn headroom(most: f64) -> f64 {
    if most.is_finite() && most > 0.0 { most * 1.06 } else { 1.0 }
}

#[cfg(test)]
mod tests;
