use super::*;

#[test]
fn every_page_parses_and_its_device_is_possible() {
    let pages = all();
    assert!(pages.len() >= 55, "{} pages", pages.len());
    for page in &pages {
        assert_eq!(page.id, page.id.to_ascii_lowercase());
        assert!(text(&page.id).is_some(), "{}: file and id differ", page.id);
    }
}

fn leaves(prefix: &str, value: &toml::Value, out: &mut Vec<String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                leaves(&path, value, out);
            }
        }
        toml::Value::Integer(_) | toml::Value::Float(_) => out.push(prefix.to_owned()),
        _ => {}
    }
}

#[test]
fn every_number_has_provenance() {
    for page in all() {
        let table: toml::Table = text(&page.id).expect("built in").parse().expect("TOML");
        let mut numbers = Vec::new();
        leaves("", &table["device"], &mut numbers);
        assert!(numbers.len() > 4, "{}", page.id);
        for path in numbers {
            let from = page.provenance_of(&path);
            let from = from.unwrap_or_else(|| panic!("{}: {path} has no source", page.id));
            assert!(!from.source.is_empty(), "{}: {path}", page.id);
        }
    }
}

#[test]
fn devices_of_the_source_documents_are_in_the_catalogue() {
    for id in [
        "ddrdrive-x1",
        "intel-x25-e-32gb",
        "intel-x25-m-g2-80gb",
        "intel-x25-v-40gb",
        "intel-310-80gb",
        "intel-311-20gb",
        "intel-510-250gb",
        "intel-520-480gb",
        "intel-320-40gb",
        "intel-320-80gb",
        "intel-320-160gb",
        "intel-320-300gb",
        "intel-320-600gb",
        "intel-710-100gb",
        "intel-710-200gb",
        "intel-710-300gb",
        "ocz-vertex-2-ex-50gb",
        "ocz-vertex-2-pro-50gb",
        "ocz-vector-180-480gb",
        "samsung-850-pro-256gb",
        "samsung-sm951-512gb",
        "sandisk-extreme-pro-480gb",
        "samsung-830-128gb",
        "pmc-flashtec-nv-4gb",
        "pmc-flashtec-nv-16gb",
    ] {
        assert_eq!(find(id).expect(id).id, id);
    }
}

#[test]
fn device_without_controller_cost_has_a_reservation() {
    for page in all() {
        assert!(page.knows_controller() || page.reservation.is_some(), "{}", page.id);
    }
}

#[test]
fn printed_rates_are_whole() {
    let mut checking = 0;
    for page in all() {
        for rate in &page.facts.rates {
            let what = format!("{}: {}", page.id, rate.what);
            assert!(rate.iops.is_some() != rate.mb_s.is_some(), "{what}");
            assert!(rate.requests_s() > 0.0 && !rate.source.is_empty(), "{what}");
            assert!(rate.span_share > 0.0 && rate.span_share <= 1.0, "{what}");
            rate.load.check().expect(&what);
            checking += usize::from(!rate.fitted);
        }
    }
    assert!(checking >= 7, "{checking} rates check a model that was not fitted to them");
}

#[test]
fn longest_provenance_name_wins() {
    let page = find("ocz-vertex-2-pro-50gb").expect("built in");
    let of = |path: &str| page.provenance_of(path).expect(path).mark;
    assert_eq!(of("media.flash.geometry.blocks_per_plane"), Trust::Fitted);
    assert_eq!(of("media.flash.geometry.channels"), Trust::Assumed);
    assert!(page.provenance_of("nothing").is_none());
}

#[test]
fn unknown_and_ambiguous_names_are_refused() {
    for name in ["no such thing", ""] {
        let error = find(name).expect_err(name);
        assert!(matches!(error, LabError::UnknownDevice { known: 55.., .. }), "{error}");
    }
    let error = find("intel-320").expect_err("five of them");
    let five = |e: &LabError| match e {
        LabError::AmbiguousDevice { candidates, .. } => candidates.len() == 5,
        _ => false,
    };
    assert!(five(&error) && !error.to_string().contains('\n'), "{error}");
    assert_eq!(find("Intel 710 200 GB").expect("by name").id, "intel-710-200gb");
    assert_eq!(find("zeusram").expect("by part").id, "stec-zeusram-8gb");
}

#[test]
fn impossible_devices_are_refused_in_one_line() {
    let page = text("ocz-vertex-2-ex-50gb").expect("built in");
    for (from, to) in [
        ("blocks_per_plane = 6334", "blocks_per_plane = 8"),
        ("channels = 8", "channels = 0"),
        ("erase_us = 1500", "erase_us = -1"),
        ("plp = \"full\"", "plp = \"perhaps\""),
        ("[facts]", "[facts]\ncolor = 3"),
    ] {
        assert!(page.contains(from), "{from}");
        let error = Page::parse("x.toml", &page.replace(from, to)).expect_err(to);
        assert_eq!(error.exit_code(), 2);
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn interval_follows_how_a_figure_was_printed() {
    let fact = |recalled, about| Fact {
        value: Some(100.0),
        low: None,
        high: None,
        source: String::new(),
        recalled,
        about,
        load: None,
        note: String::new(),
    };
    assert_eq!(fact(false, false).interval(), (100.0, 100.0, 100.0));
    assert_eq!(fact(true, true).interval(), (75.0, 100.0, 125.0));
    let (low, _, high) = fact(false, true).interval();
    assert!((low - 90.0).abs() < 1e-9 && (high - 110.0).abs() < 1e-9);
    let range = Fact { value: None, low: Some(30.0), high: Some(60.0), ..fact(false, false) };
    assert_eq!(range.interval(), (30.0, 45.0, 60.0));
}

#[test]
fn a_drive_is_known_by_its_part_number() {
    for page in all() {
        for part in &page.part_numbers {
            let found = of_drive(&format!("VENDOR {part}-00A07")).expect("a page");
            assert_eq!(found.id, page.id, "{part} is on two pages");
        }
    }
    let page = of_drive("Samsung SSD 850 PRO 256GB").expect("a page");
    assert_eq!(page.id, "samsung-850-pro-256gb");
    assert_eq!(of_drive("QEMU NVMe Ctrl"), None);
}
