//! Charts of growth: a measure against the number of endpoints, a line for each provider.
use super::{DocResult, escape};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Size of a chart, and of the frame of its lines.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 540.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 265.0;

const COLOURS: [&str; 4] = ["#2b6cb0", "#c05621", "#2f855a", "#6b46c1"];

/// Points of a line: numbers of endpoints, and figures.
type GrowthLine = Vec<(f64, f64)>;

/// Powers of ten around all of these figures.
fn decades(figures: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = figures.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), figure| {
        (low.min(figure), high.max(figure))
    });
    let low = low.max(f64::MIN_POSITIVE).log10().floor();
    (low, high.log10().ceil().max(low + 1.0))
}

/// A chart with logarithmic axes.
fn growth_chart(title: &str, lines: &BTreeMap<&str, GrowthLine>) -> String {
    let points = || lines.values().flatten();
    let (left, right) = decades(points().map(|point| point.0));
    let (low, high) = decades(points().map(|point| point.1));
    let x = |at: f64| LEFT + (at - left) / (right - left) * (RIGHT - LEFT);
    let y = |at: f64| BOTTOM - (at - low) / (high - low) * (BOTTOM - TOP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"4\" y=\"18\" font-weight=\"bold\">{}</text>\n",
        escape(title)
    );
    for decade in left as i32..=right as i32 {
        let at = x(decade.into());
        let _ = writeln!(
            out,
            "<path d=\"M{at:.0} {TOP}V{BOTTOM}\" stroke=\"#e2e8f0\"/><text x=\"{at:.0}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 18.0,
            10f64.powi(decade)
        );
    }
    for decade in low as i32..=high as i32 {
        let at = y(decade.into());
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.0}H{RIGHT}\" stroke=\"#e2e8f0\"/><text x=\"{}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            10f64.powi(decade)
        );
    }
    for (at, (provider, line)) in lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let place =
            |point: &(f64, f64)| format!("{:.0},{:.0}", x(point.0.log10()), y(point.1.log10()));
        let places: Vec<_> = line.iter().map(place).collect();
        let legend = TOP + 16.0 + 20.0 * at as f64;
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"{legend}\" fill=\"{colour}\">{}</text>",
            places.join(" "),
            RIGHT + 14.0,
            escape(provider)
        );
    }
    out + "</svg>\n"
}

/// The charts of `docs/growth.tsv`, by their files, and the text that shows them. Each line is a
/// pattern, a measure, a provider, a number of endpoints and a figure, with tabs between.
pub(super) fn growth_charts(figures: &str) -> DocResult<(Vec<(String, String)>, String)> {
    let mut charts: BTreeMap<(&str, &str), BTreeMap<&str, GrowthLine>> = BTreeMap::new();
    for line in figures.lines() {
        let wrong = || format!("no line of growth: {line}");
        let [pattern, measure, provider, endpoints, figure] =
            line.split('\t').collect::<Vec<_>>()[..]
        else {
            return Err(wrong());
        };
        let number =
            |text: &str| text.parse::<f64>().ok().filter(|figure| *figure > 0.0).ok_or_else(wrong);
        let point = (number(endpoints)?, number(figure)?);
        charts.entry((measure, pattern)).or_default().entry(provider).or_default().push(point);
    }
    let (mut files, mut text) = (Vec::new(), String::new());
    for ((measure, pattern), mut lines) in charts {
        lines.values_mut().for_each(|line| line.sort_by(|a, b| a.0.total_cmp(&b.0)));
        let name = format!("growth-{}.svg", files.len() + 1);
        let title = format!("{measure}, pattern {pattern}, by endpoints");
        let _ = writeln!(text, "![{title}]({name})\n");
        files.push((name, growth_chart(&title, &lines)));
    }
    Ok((files, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_growth_become_lines_of_charts() {
        let text = "ring\tall\ttcp\t1000\t10\nring\tall\ttcp\t100\t1\nring\tall\tudp\t100\t2\nhalo\tall\ttcp\t100\t2\n";
        let (files, body) = growth_charts(text).unwrap();
        assert_eq!((files.len(), files[0].0.as_str()), (2, "growth-1.svg"));
        assert!(body.contains("![all, pattern ring, by endpoints](growth-2.svg)"));
        assert!(files[1].1.contains("points=\"70,265 540,30\""), "{}", files[1].1);
        assert!(growth_charts("ring\tall\ttcp\t100\t-\n").is_err());
        assert!(growth_charts("ring\tall\n").is_err());
    }
}
