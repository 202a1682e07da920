//! Line plots as inline SVG, with logarithmic or linear axes.

/// A line of a plot.
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, in order of x.
    pub points: Vec<(f64, f64)>,
}

/// A plot.
pub struct Plot {
    /// The heading.
    pub title: String,
    /// What x and y are, with units.
    pub axes: (&'static str, &'static str),
    /// Whether x and y are logarithmic.
    pub logarithmic: (bool, bool),
    /// The lines.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
/// Left, top, right and bottom margins; the right one has the legend.
const MARGIN: (f64, f64, f64, f64) = (78.0, 36.0, 170.0, 50.0);
const COLORS: [&str; 11] = [
    "#d1242f", "#0969da", "#54aeff", "#1a7f37", "#4ac26b", "#9a6700", "#8250df", "#c297ff", "#bc4c00",
    "#57606a", "#afb8c1",
];

struct Axis {
    logarithmic: bool,
    least: f64,
    most: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, logarithmic: bool) -> Axis {
        let values: Vec<f64> =
            values.filter(|value| value.is_finite() && (!logarithmic || *value > 0.0)).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (least, most) = if values.is_empty() { (1.0, 10.0) } else { (least, most) };
        if logarithmic {
            let (low, high) = (10f64.powf(least.log10().floor()), 10f64.powf(most.log10().ceil()));
            return Axis { logarithmic, least: low, most: if high > low { high } else { low * 10.0 } };
        }
        Axis { logarithmic, least: least.min(0.0), most: if most > 0.0 { most * 1.05 } else { 1.0 } }
    }

    /// Where a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        if self.logarithmic {
            return (value / self.least).log10() / (self.most / self.least).log10();
        }
        (value - self.least) / (self.most - self.least)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.most / self.least).log10().round() as i32;
            return (0..=decades).map(|decade| self.least * 10f64.powi(decade)).collect();
        }
        (0..=5).map(|step| self.least + (self.most - self.least) * f64::from(step) / 5.0).collect()
    }
}

impl Plot {
    /// The plot as an `svg` element.
    pub fn render(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| line.points.iter().copied());
        let x = Axis::new(points().map(|point| point.0), self.logarithmic.0);
        let y = Axis::new(points().map(|point| point.1), self.logarithmic.1);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{0}</title>\
             <text x=\"{MARGIN_LEFT}\" y=\"20\" class=\"title\">{0}</text>",
            escape(&self.title),
            MARGIN_LEFT = MARGIN.0
        );
        svg += &self.grid(&x, &y);
        for (at, line) in self.lines.iter().enumerate() {
            svg += &draw(line, COLORS[at % COLORS.len()], at, &x, &y);
        }
        svg + "</svg>"
    }

    fn grid(&self, x: &Axis, y: &Axis) -> String {
        let (left, top, right, bottom) = (MARGIN.0, MARGIN.1, WIDTH - MARGIN.2, HEIGHT - MARGIN.3);
        let mut svg = String::new();
        for tick in x.ticks() {
            let at = horizontal(x, tick);
            svg +=
                &format!("<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\" class=\"grid\"/>");
            svg += &format!(
                "<text x=\"{at:.1}\" y=\"{}\" class=\"tick middle\">{}</text>",
                bottom + 16.0,
                label(tick)
            );
        }
        for tick in y.ticks() {
            let at = vertical(y, tick);
            svg +=
                &format!("<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" class=\"grid\"/>");
            svg += &format!(
                "<text x=\"{}\" y=\"{:.1}\" class=\"tick end\">{}</text>",
                left - 6.0,
                at + 4.0,
                label(tick)
            );
        }
        let middle = (f64::midpoint(left, right), f64::midpoint(top, bottom));
        svg += &format!(
            "<text x=\"{}\" y=\"{}\" class=\"tick middle\">{}</text>",
            middle.0,
            HEIGHT - 12.0,
            escape(self.axes.0)
        );
        svg + &format!(
            "<text transform=\"translate(16 {}) rotate(-90)\" class=\"tick middle\">{}</text>",
            middle.1,
            escape(self.axes.1)
        )
    }
}

fn draw(line: &Line, color: &str, at: usize, x: &Axis, y: &Axis) -> String {
    let shown = line
        .points
        .iter()
        .filter(|point| (!x.logarithmic || point.0 > 0.0) && (!y.logarithmic || point.1 > 0.0));
    let points: Vec<(f64, f64)> = shown.map(|point| (horizontal(x, point.0), vertical(y, point.1))).collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let mut svg = format!("<polyline points=\"{}\" stroke=\"{color}\"/>", path.join(" "));
    for (x, y) in points.iter().take(40) {
        svg += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{color}\"/>");
    }
    let (left, top) = (WIDTH - MARGIN.2 + 14.0, MARGIN.1 + 8.0 + at as f64 * 19.0);
    svg += &format!("<rect x=\"{left}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{color}\"/>", top - 4.0);
    svg + &format!(
        "<text x=\"{}\" y=\"{}\" class=\"tick\">{}</text>",
        left + 20.0,
        top + 2.0,
        escape(&line.name)
    )
}

fn horizontal(axis: &Axis, value: f64) -> f64 {
    MARGIN.0 + axis.share(value) * (WIDTH - MARGIN.0 - MARGIN.2)
}

fn vertical(axis: &Axis, value: f64) -> f64 {
    HEIGHT - MARGIN.3 - axis.share(value) * (HEIGHT - MARGIN.1 - MARGIN.3)
}

fn label(value: f64) -> String {
    match value.abs() {
        zero if zero < 1e-9 => "0".into(),
        large if large >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        thousand if thousand >= 1e3 => format!("{}k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Text for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithmic_axes_end_at_decades() {
        let axis = Axis::new([3.0, 2500.0].into_iter(), true);
        assert_eq!(axis.ticks(), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        assert!((axis.share(100.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_plot_without_points_is_still_drawn() {
        let line = Line { name: "<none>".into(), points: Vec::new() };
        let plot = Plot { title: "t".into(), axes: ("x", "y"), logarithmic: (true, true), lines: vec![line] };
        let svg = plot.render();
        assert!(svg.contains("&lt;none&gt;") && !svg.contains("NaN"), "{svg}");
    }
}
