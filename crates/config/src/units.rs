//! Sizes in bytes, as server entries and `toolwharf.toml` write them.

/// The meaning of `kB`, `MB`, `GB` and `TB`. It differs between the two kinds of files, so that existing files keep
/// their meaning.
#[derive(Clone, Copy)]
pub(crate) enum Prefix {
    /// Powers of 1,024, as Docker reads them: server entries.
    Binary,
    /// Powers of 1,000: `toolwharf.toml`.
    Decimal,
}

/// The bytes of a size such as `"512M"`, `"1.5 GiB"` or `"1048576"`. Suffixes are case-insensitive. `K`, `Ki` and `KiB`
/// (and the same for `M`, `G` and `T`) are powers of 1,024 in both kinds of files. `None` if the text is not a size, or
/// is 10¹⁸ bytes or more.
pub(crate) fn bytes(text: &str, prefix: Prefix) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (power, suffix) = match unit.strip_prefix(['k', 'm', 'g', 't']) {
        Some(suffix) => (1 + "kmgt".find(&unit[..1])?, suffix),
        None => (0, unit.as_str()),
    };
    let base = match (suffix, prefix) {
        ("" | "i" | "ib", _) | ("b", Prefix::Binary) => 1024.0_f64,
        ("b", Prefix::Decimal) => 1000.0,
        _ => return None,
    };
    if power == 0 && !matches!(suffix, "" | "b") {
        return None;
    }
    let bytes = decimal(number)? * base.powi(i32::try_from(power).ok()?);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is not negative and below 1e18"
    )]
    (bytes < 1e18).then_some(bytes as u64)
}

/// A decimal number; not `1e3`, `inf` or `-0`.
pub(crate) fn decimal(text: &str) -> Option<f64> {
    let is_plain = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    text.bytes().all(is_plain).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_settings_have_the_same_suffixes() {
        let mib = 1 << 20;
        for (text, binary, decimal) in [
            ("1048576", Some(mib), Some(mib)),
            ("64B", Some(64), Some(64)),
            ("512M", Some(512 * mib), Some(512 * mib)),
            ("512Mi", Some(512 * mib), Some(512 * mib)),
            ("512 MiB", Some(512 * mib), Some(512 * mib)),
            ("512mib", Some(512 * mib), Some(512 * mib)),
            ("2MB", Some(2 * mib), Some(2_000_000)),
            ("2kB", Some(2048), Some(2000)),
            ("1GB", Some(1 << 30), Some(1_000_000_000)),
            ("1TB", Some(1 << 40), Some(1_000_000_000_000)),
            ("1.5Gi", Some(3 << 29), Some(3 << 29)),
            ("1t", Some(1 << 40), Some(1 << 40)),
        ] {
            assert_eq!(bytes(text, Prefix::Binary), binary, "{text} in an entry");
            assert_eq!(bytes(text, Prefix::Decimal), decimal, "{text} in a setting");
        }
        for text in [
            "", "M", "-1", "1e3", "1.2.3", "inf", "1 i", "1ib", "1Mb2", "1P", "1MM", "9999999T",
            "½M",
        ] {
            assert_eq!(bytes(text, Prefix::Binary), None, "{text}");
            assert_eq!(bytes(text, Prefix::Decimal), None, "{text}");
        }
    }
}
