//! The text of metrics: OpenMetrics 1.0, or the older format that every Prometheus reads.

use std::fmt::Write;

use super::protobuf::{Histogram, Kind, Message};

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
    /// The protocol buffers of Prometheus, with native histograms.
    Protobuf,
}

impl Format {
    /// The one that a client prefers, by the header `Accept`.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        // Prometheus asks for protocol buffers first where it takes native histograms.
        let is_first = |part: &str| {
            part.contains("application/vnd.google.protobuf")
                && part.contains("io.prometheus.client.MetricFamily")
                && part.contains("delimited")
        };
        match accept.split(',').next().is_some_and(is_first) {
            true => Self::Protobuf,
            false if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// The header `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }
}

/// Labels of a sample: name and value.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Metrics, one family after the other.
pub struct Exposition {
    format: Format,
    text: String,
    /// Protocol buffers: the families that are whole.
    families: Vec<u8>,
}

impl Exposition {
    /// Nothing yet.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self { format, text: String::new(), families: Vec::new() }
    }

    /// Begins the family `name`, whose samples follow: counters without their suffix.
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // In the older format the name of a counter has its suffix.
        let is_plain_counter = kind == "counter" && self.format == Format::Prometheus;
        let name = if is_plain_counter { format!("{name}_total") } else { name.to_owned() };
        let _ = writeln!(self.text, "# HELP {name} {help}");
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        let unit = ["bytes", "seconds"].into_iter().find(|unit| name.ends_with(unit));
        if let Some(unit) = unit.filter(|_| self.format == Format::OpenMetrics) {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.text.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"", if at == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    /// A family of gauges.
    pub fn gauges<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
    ) {
        if self.format == Format::Protobuf {
            return self.family(Kind::Gauge, name, help, samples);
        }
        self.begin(name, "gauge", help);
        for (labels, value) in samples {
            self.sample(name, &labels, value);
        }
    }

    /// A family of counters; `name` is without `_total`.
    pub fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
    ) {
        if self.format == Format::Protobuf {
            return self.family(Kind::Counter, &format!("{name}_total"), help, samples);
        }
        self.begin(name, "counter", help);
        for (labels, value) in samples {
            self.sample(&format!("{name}_total"), &labels, value);
        }
    }

    fn family<'a>(
        &mut self,
        kind: Kind,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
    ) {
        let mut family = Message::family(name, help, kind);
        for (labels, value) in samples {
            family.add(kind, &labels, value);
        }
        family.append_to(&mut self.families);
    }

    /// A family of histograms. Those of protocol buffers have native buckets beside the classic
    /// ones.
    pub fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, Histogram<'a>)>,
    ) {
        if self.format == Format::Protobuf {
            let mut family = Message::family(name, help, Kind::Histogram);
            for (labels, histogram) in samples {
                family.add_histogram(&labels, &histogram);
            }
            return family.append_to(&mut self.families);
        }
        self.begin(name, "histogram", help);
        for (labels, Histogram { bounds, at_most, count, sum, .. }) in samples {
            for (bound, at_most) in bounds.iter().zip(at_most) {
                let bound = bound.to_string();
                let mut labels = labels.clone();
                labels.push(("le", &bound));
                self.sample(&format!("{name}_bucket"), &labels, *at_most as f64);
            }
            let mut all = labels.clone();
            all.push(("le", "+Inf"));
            self.sample(&format!("{name}_bucket"), &all, count as f64);
            self.sample(&format!("{name}_sum"), &labels, sum);
            self.sample(&format!("{name}_count"), &labels, count as f64);
        }
    }

    /// All of it.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        match self.format {
            Format::Protobuf => self.families,
            Format::OpenMetrics | Format::Prometheus => self.text.into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(format: Format) -> String {
        let mut out = Exposition::new(format);
        out.gauges("a_bytes", "Some bytes.", [(vec![("pool", "t\"a\\nk\n")], 4096.0)]);
        out.counters("b", "Some things.", [(vec![], 3.0)]);
        let (bounds, at_most, native) = (&[0.001, 0.5], &[1, 2], &[(3, 3)]);
        let latency = Histogram { bounds, at_most, count: 3, sum: 0.25, native };
        out.histograms("c_seconds", "Times.", [(vec![("op", "read")], latency)]);
        String::from_utf8(out.finish()).unwrap()
    }

    #[test]
    fn both_formats_are_as_their_specifications_say() {
        let open = "# HELP a_bytes Some bytes.\n# TYPE a_bytes gauge\n# UNIT a_bytes bytes\n\
                    a_bytes{pool=\"t\\\"a\\\\nk\\n\"} 4096\n\
                    # HELP b Some things.\n# TYPE b counter\nb_total 3\n\
                    # HELP c_seconds Times.\n# TYPE c_seconds histogram\n\
                    # UNIT c_seconds seconds\nc_seconds_bucket{op=\"read\",le=\"0.001\"} 1\n\
                    c_seconds_bucket{op=\"read\",le=\"0.5\"} 2\n\
                    c_seconds_bucket{op=\"read\",le=\"+Inf\"} 3\n\
                    c_seconds_sum{op=\"read\"} 0.25\nc_seconds_count{op=\"read\"} 3\n# EOF\n";
        assert_eq!(some(Format::OpenMetrics), open);
        let plain = open.replace("# UNIT a_bytes bytes\n", "").replace("# EOF\n", "");
        let plain = plain.replace("# UNIT c_seconds seconds\n", "");
        let plain = plain.replace("HELP b ", "HELP b_total ").replace("TYPE b ", "TYPE b_total ");
        assert_eq!(some(Format::Prometheus), plain);
    }

    #[test]
    fn a_client_gets_the_format_that_it_asks_for() {
        let of_prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(Format::accepted(of_prometheus), Format::OpenMetrics);
        let native = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                      encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.8";
        assert_eq!(Format::accepted(native), Format::Protobuf);
        assert_eq!(Format::accepted("text/plain"), Format::Prometheus);
        assert_eq!(Format::accepted(""), Format::Prometheus);
    }
}
