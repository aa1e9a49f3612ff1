use super::*;

fn part(failures_a_year: f64) -> Part {
    Part { name: "part".into(), failures_a_year }
}

fn arrangement(shared: &[f64], sides: &[&[f64]]) -> Outages {
    let parts = |rates: &[f64]| rates.iter().map(|rate| part(*rate)).collect::<Vec<_>>();
    Outages {
        shared: parts(shared),
        sides: sides.iter().map(|side| parts(side)).collect(),
        repair_hours: 240.0,
        years: 20_000.0,
        seed: 5,
    }
}

#[test]
fn simulated_outages_are_those_of_the_formula() {
    for (shared, sides) in [
        (&[][..], &[&[2.0][..]][..]),
        (&[1.0, 0.5], &[&[2.0, 3.0]]),
        (&[], &[&[2.0, 1.0], &[3.0]]),
        (&[0.3], &[&[2.0, 1.0], &[3.0], &[1.0, 1.0, 1.0]]),
    ] {
        let outcome = arrangement(shared, sides).run().expect("runs");
        let (simulated, formula) = (outcome.simulated, outcome.formula);
        // Four standard deviations of a count; outages come nearly independently.
        let off = 4.0 / (outcome.outages as f64).sqrt();
        assert!(outcome.outages > 1_000, "{outcome:?}");
        for (got, wanted) in [
            (simulated.outages_a_year, formula.outages_a_year),
            (simulated.hours_a_year, formula.hours_a_year),
            (simulated.repairs_a_year, formula.repairs_a_year),
        ] {
            assert!((got / wanted - 1.0).abs() < off, "{got} simulated, {wanted} by formula");
        }
    }
}

#[test]
fn rare_failures_are_as_textbooks_approximate_them() {
    let repair_years = 240.0 / YEAR_HOURS;
    let single = arrangement(&[0.001], &[&[0.002, 0.003]]).formula();
    assert!(
        (single.outages_a_year / 0.006 - 1.0).abs() < 1e-3,
        "rates in series add up: {single:?}"
    );
    assert!((single.hours_a_year / (0.006 * 240.0) - 1.0).abs() < 1e-3);
    let mirror = arrangement(&[], &[&[0.002], &[0.003]]).formula();
    let wanted = 2.0 * 0.002 * 0.003 * repair_years;
    assert!((mirror.outages_a_year / wanted - 1.0).abs() < 1e-3, "{mirror:?}");
    let behind_one = arrangement(&[0.001], &[&[0.002], &[0.003]]).formula();
    let wanted = 0.001 + wanted;
    assert!((behind_one.outages_a_year / wanted - 1.0).abs() < 1e-3, "{behind_one:?}");
}

#[test]
fn arrangements_that_make_no_sense_are_refused() {
    let good = arrangement(&[], &[&[1.0]]);
    for bad in [
        Outages { sides: vec![], ..good.clone() },
        Outages { sides: vec![vec![]], ..good.clone() },
        arrangement(&[0.0], &[&[1.0]]),
        arrangement(&[], &[&[f64::NAN]]),
        Outages { repair_hours: 0.0, ..good.clone() },
        Outages { years: f64::INFINITY, ..good.clone() },
        Outages { years: 1e12, ..good.clone() },
        Outages { sides: vec![vec![part(1.0); MAX_PARTS + 1]], ..good.clone() },
    ] {
        let why = bad.run().expect_err("must refuse");
        assert!(why.exit_code() == 2 && !why.to_string().contains('\n'), "{why}");
    }
    assert_eq!(good.run().unwrap(), good.run().unwrap());
}
