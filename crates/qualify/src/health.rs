//! Health counters of a drive: wear, traffic, errors, as smartctl and nvme-cli print them.
//!
//! What enters: JSON of either program. What leaves: counters in bytes and percent, and what two
//! readings say of the writes between them. What always holds: a counter whose unit is not known
//! stays unknown. Who calls: `forebay qualify` before, during and after a run; the report.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Qualification;

/// Bytes of a counter, and the unit in which the drive counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// So many.
    pub bytes: f64,
    /// The smallest change that can be seen.
    pub unit_bytes: f64,
}

/// One reading. `None` means unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Programs that it was read with.
    pub source: String,
    /// What the drive calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Degrees Celsius.
    pub temperature_c: Option<f64>,
    /// Share of its rated life that is used up, in percent.
    pub used_percent: Option<f64>,
    /// Spare blocks that are left, in percent.
    pub spare_percent: Option<f64>,
    /// Written by hosts.
    pub host_written: Option<Counted>,
    /// Written to the media.
    pub media_written: Option<Counted>,
    /// Power cuts without a word before.
    pub unsafe_shutdowns: Option<u64>,
    /// Hours under power.
    pub power_on_hours: Option<u64>,
    /// Errors of the media.
    pub media_errors: Option<u64>,
    /// What the drive warns of; 0 is nothing.
    pub critical_warning: Option<u64>,
}

/// A reading of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Seconds since 1970.
    pub at_s: u64,
    /// Steps that were done.
    pub steps: usize,
    /// What was read.
    pub health: Health,
}

/// Writes to the media for each write of the host, between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amplification {
    /// The least that the units of the counters allow.
    pub low: f64,
    /// The most; `None` when the host wrote less than a unit.
    pub high: Option<f64>,
}

const SECTOR_BYTES: f64 = 512.0;
/// NVMe counts thousands of sectors.
const NVME_UNIT_BYTES: f64 = 512_000.0;
const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_073_741_824.0;
const KELVIN: f64 = 273.0;

/// A number, or a number as text: tools print those of 128 bits in quotes.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.replace(',', "").trim().parse().ok(),
        _ => None,
    }
}

fn whole(value: &Value) -> Option<u64> {
    number(value).filter(|n| *n >= 0.0).map(|n| n as u64)
}

fn counted(value: &Value, unit_bytes: f64) -> Option<Counted> {
    number(value).map(|count| Counted { bytes: count * unit_bytes, unit_bytes })
}

impl Health {
    /// Of `smartctl -x --json`. Fails with smartctl's own message when it could read nothing.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn of_smartctl(text: &str) -> Result<Self, String> {
        let page: Value =
            serde_json::from_str(text).map_err(|e| format!("smartctl prints no JSON: {e}"))?;
        let mut health = Self { source: "smartctl".to_owned(), ..Self::default() };
        health.model = page["model_name"].as_str().map(str::to_owned);
        health.temperature_c = number(&page["temperature"]["current"]);
        health.power_on_hours = whole(&page["power_on_time"]["hours"]);
        let nvme = &page["nvme_smart_health_information_log"];
        let (ata, statistics) = (&page["ata_smart_attributes"], &page["ata_device_statistics"]);
        if nvme.is_object() {
            health.add_nvme(nvme, "available_spare", "percentage_used");
        }
        for attribute in ata["table"].as_array().into_iter().flatten() {
            health.add_attribute(attribute);
        }
        for statistic in pages(statistics) {
            health.add_statistic(statistic);
        }
        if nvme.is_object() || ata.is_object() || statistics.is_object() {
            return Ok(health);
        }
        let messages = page["smartctl"]["messages"].as_array().into_iter().flatten();
        let said: Vec<&str> = messages.filter_map(|m| m["string"].as_str()).collect();
        let said = said.first().copied().unwrap_or("it has no counters");
        Err(format!("smartctl: {said}"))
    }

    /// Of `nvme smart-log -o json`.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn of_nvme(text: &str) -> Result<Self, String> {
        let page: Value =
            serde_json::from_str(text).map_err(|e| format!("nvme prints no JSON: {e}"))?;
        if number(&page["data_units_written"]).is_none() {
            let said = page["error"].as_str().unwrap_or("it has no counters");
            return Err(format!("nvme: {said}"));
        }
        let mut health = Self { source: "nvme".to_owned(), ..Self::default() };
        health.temperature_c = number(&page["temperature"]).map(|kelvin| kelvin - KELVIN);
        health.power_on_hours = whole(&page["power_on_hours"]);
        health.add_nvme(&page, "avail_spare", "percent_used");
        Ok(health)
    }

    /// Adds the media's writes of `nvme ocp smart-add-log -o json`, where the drive has that page.
    pub fn add_ocp(&mut self, text: &str) {
        let Ok(page) = serde_json::from_str::<Value>(text) else { return };
        let written = &page["Physical media units written"];
        let bytes = match written {
            Value::Object(halves) => {
                let half = |name: &str| halves.get(name).and_then(number);
                half("hi").zip(half("lo")).map(|(hi, lo)| hi * 2f64.powi(64) + lo)
            }
            other => number(other),
        };
        if let Some(bytes) = bytes {
            self.media_written = Some(Counted { bytes, unit_bytes: 1.0 });
            self.source.push_str(", nvme ocp");
        }
    }

    fn add_nvme(&mut self, log: &Value, spare: &str, used: &str) {
        self.used_percent = number(&log[used]);
        self.spare_percent = number(&log[spare]);
        self.host_written = counted(&log["data_units_written"], NVME_UNIT_BYTES);
        self.unsafe_shutdowns = whole(&log["unsafe_shutdowns"]);
        self.media_errors = whole(&log["media_errors"]);
        self.critical_warning = whole(&log["critical_warning"]);
    }

    /// An attribute of a SATA drive. Its number says little, and smartctl's name for it says the
    /// unit; a name without one is passed over.
    fn add_attribute(&mut self, attribute: &Value) {
        let raw = &attribute["raw"]["value"];
        match attribute["name"].as_str().unwrap_or_default() {
            "Host_Writes_32MiB" => self.host_written = counted(raw, 32.0 * MIB),
            "Host_Writes_GiB" | "Lifetime_Writes_GiB" | "Total_Writes_GiB" => {
                self.host_written = counted(raw, GIB);
            }
            "Total_LBAs_Written" | "Total_Host_Sector_Write" => {
                self.host_written = counted(raw, SECTOR_BYTES);
            }
            "NAND_Writes_32MiB" => self.media_written = counted(raw, 32.0 * MIB),
            "NAND_Writes_1GiB" | "NAND_Writes_GiB" | "Nand_Writes_GiB" => {
                self.media_written = counted(raw, GIB);
            }
            "Unsafe_Shutdown_Count" | "Power-Off_Retract_Count" | "Unexpect_Power_Loss_Ct" => {
                self.unsafe_shutdowns = self.unsafe_shutdowns.or(whole(raw));
            }
            "Reported_Uncorrect" => self.media_errors = whole(raw),
            // These count down from 100.
            "Media_Wearout_Indicator"
            | "Wear_Leveling_Count"
            | "Percent_Lifetime_Remain"
            | "SSD_Life_Left" => {
                let left = number(&attribute["value"]).filter(|left| *left <= 100.0);
                self.used_percent = self.used_percent.or(left.map(|left| 100.0 - left));
            }
            _ => {}
        }
    }

    /// A statistic that the ATA standard names: it counts before an attribute of the maker.
    fn add_statistic(&mut self, statistic: &Value) {
        if statistic["flags"]["valid"].as_bool() == Some(false) {
            return;
        }
        let value = &statistic["value"];
        match statistic["name"].as_str().unwrap_or_default() {
            "Logical Sectors Written" => self.host_written = counted(value, SECTOR_BYTES),
            "Percentage Used Endurance Indicator" => self.used_percent = number(value),
            "Number of Reported Uncorrectable Errors" => self.media_errors = whole(value),
            _ => {}
        }
    }

    /// The writes of the media for those of hosts since `before`. `own_bytes` is what this program
    /// wrote meanwhile, for drives that do not count the hosts' writes.
    #[must_use]
    pub fn amplification_since(&self, before: &Self, own_bytes: f64) -> Option<Amplification> {
        let (media, media_before) = (self.media_written?, before.media_written?);
        let media_bytes = media.bytes - media_before.bytes;
        let (host_bytes, host_unit) = match (self.host_written, before.host_written) {
            (Some(now), Some(then)) => (now.bytes - then.bytes, now.unit_bytes),
            _ => (own_bytes, 0.0),
        };
        if host_bytes <= 0.0 || media_bytes < 0.0 {
            return None;
        }
        let low = (media_bytes - media.unit_bytes).max(0.0) / (host_bytes + host_unit);
        let least_host = host_bytes - host_unit;
        let high = (least_host > 0.0).then(|| (media_bytes + media.unit_bytes) / least_host);
        Some(Amplification { low, high })
    }
}

/// All entries of the pages of ATA device statistics.
fn pages(statistics: &Value) -> impl Iterator<Item = &Value> {
    let pages = statistics["pages"].as_array().into_iter().flatten();
    pages.flat_map(|page| page["table"].as_array().into_iter().flatten())
}

impl Qualification {
    /// The first and the last reading; nothing when there is only one.
    pub(crate) fn first_and_last(&self) -> Option<(&Health, &Health)> {
        match &self.health[..] {
            [first, .., last] => Some((&first.health, &last.health)),
            _ => None,
        }
    }

    /// The media's writes for those of hosts over the run.
    pub(crate) fn amplification(&self) -> Option<Amplification> {
        let (first, last) = self.first_and_last()?;
        let steps = self.health.first()?.steps..self.health.last()?.steps;
        let outcomes = self.outcomes.get(steps)?.iter();
        let own_bytes: u64 = outcomes.map(|o| o.measured.written_bytes).sum();
        last.amplification_since(first, own_bytes as f64)
    }

    /// What the counters say of wear, in one sentence.
    pub(crate) fn wear_text(&self) -> Option<String> {
        let (first, last) = self.first_and_last()?;
        let amplification = self.amplification().map(|found| match found.high {
            Some(high) => format!(
                "the media took {:.2} to {high:.2} bytes for each byte that hosts wrote",
                found.low
            ),
            None => format!("the media took {:.2} bytes or more for each of hosts", found.low),
        });
        let used = first.used_percent.zip(last.used_percent);
        let used = used.map(|(before, after)| {
            format!("{before:.0} % of its rated life was used up before, {after:.0} % after")
        });
        let said: Vec<String> = amplification.into_iter().chain(used).collect();
        (!said.is_empty()).then(|| format!("the drive counts: {}", said.join("; ")))
    }
}
