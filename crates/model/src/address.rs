//! Addresses of the public internet, and ranges of addresses. Servers that no administrator registered, and names on an
//! allow-list, may only have public addresses.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// An address, or a network such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    network: IpAddr,
    /// The number of leading bits that all its addresses have in common.
    bits: u8,
}

/// The text is neither an address nor a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address or a network such as `10.0.0.0/8`")]
pub struct InvalidRange;

impl AddressRange {
    /// Returns true if the address is in the range. An IPv4 address may be mapped to IPv6.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.network, ip.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits));
                (network.to_bits() ^ ip.to_bits()) & mask.unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits));
                (network.to_bits() ^ ip.to_bits()) & mask.unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for AddressRange {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let network = address.parse::<IpAddr>().map_err(|_| InvalidRange)?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().map_err(|_| InvalidRange)?,
            None => most,
        };
        if bits > most || network != network.to_canonical() {
            return Err(InvalidRange);
        }
        Ok(Self { network, bits })
    }
}

/// Returns whether an address belongs to the public internet according to IANA's registries of special-purpose
/// addresses (RFC 6890).
///
/// An IPv6 address that contains an IPv4 address is as public as that one. Addresses outside of global unicast space
/// are not public. The services in `192.0.0.0/24` and `2001::/23` that the registries call global are not public
/// either, because no server has such an address.
#[must_use]
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || ip.is_multicast()
        // "This network".
        || a == 0
        // Shared between a provider and its customers (carrier-grade NAT).
        || (a == 100 && (64..128).contains(&b))
        // IETF protocol assignments.
        || (a == 192 && b == 0 && c == 0)
        // 6to4 relays, withdrawn.
        || (a == 192 && b == 88 && c == 99)
        // Benchmarks.
        || (a == 198 && (b == 18 || b == 19))
        // Reserved and broadcast.
        || a >= 240)
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let carried = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match ip.segments() {
        // IPv4-mapped and NAT64.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            carried(high, low)
        }
        // 6to4.
        [0x2002, high, low, ..] => carried(high, low),
        // Blocks for IETF protocol assignments (with Teredo and benchmarking), and for documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        // Global unicast, and nothing else.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The registered blocks with their first and last addresses, and the addresses next to them.
    const BLOCKS: &str = "
        0.0.0.0/8           0.0.0.0       0.255.255.255     1.0.0.0          1.0.0.0
        10.0.0.0/8          10.0.0.0      10.255.255.255    9.255.255.255    11.0.0.0
        100.64.0.0/10       100.64.0.0    100.127.255.255   100.63.255.255   100.128.0.0
        127.0.0.0/8         127.0.0.0     127.255.255.255   126.255.255.255  128.0.0.0
        169.254.0.0/16      169.254.0.0   169.254.169.254   169.253.255.255  169.255.0.0
        172.16.0.0/12       172.16.0.0    172.31.255.255    172.15.255.255   172.32.0.0
        192.0.0.0/24        192.0.0.0     192.0.0.255       191.255.255.255  192.0.1.0
        192.0.2.0/24        192.0.2.0     192.0.2.255       192.0.1.255      192.0.3.0
        192.88.99.0/24      192.88.99.0   192.88.99.255     192.88.98.255    192.88.100.0
        192.168.0.0/16      192.168.0.0   192.168.255.255   192.167.255.255  192.169.0.0
        198.18.0.0/15       198.18.0.0    198.19.255.255    198.17.255.255   198.20.0.0
        198.51.100.0/24     198.51.100.0  198.51.100.255    198.51.99.255    198.51.101.0
        203.0.113.0/24      203.0.113.0   203.0.113.255     203.0.112.255    203.0.114.0
        multicast,reserved  224.0.0.0     255.255.255.255   223.255.255.255  223.255.255.255
        2001::/23           2001::        2001:1ff:ffff::   2001:200::       2000:ffff::
        2001:db8::/32       2001:db8::    2001:db8:ffff::1  2001:db7:ffff::  2001:db9::
        3fff::/20           3fff::        3fff:fff:ffff::1  3ffe:ffff::      3fff:1000::
    ";

    #[test]
    fn special_purpose_addresses_are_not_public() {
        let check = |expected: bool, addresses: &[&str]| {
            for ip in addresses {
                assert_eq!(is_public(ip.parse().expect(ip)), expected, "{ip}");
            }
        };
        for line in BLOCKS.trim().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [block, first, last, before, after] = words[..] else {
                panic!("{line}");
            };
            let (inside, outside) = ([first, last], [before, after]);
            check(false, &inside);
            check(true, &outside);
            // An IPv6 address that contains one of these IPv4 addresses gives the same result.
            for (ips, expected) in [(inside, false), (outside, true)] {
                for ip in ips.iter().filter_map(|ip| ip.parse::<Ipv4Addr>().ok()) {
                    let [a, b, c, d] = ip.octets();
                    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                    for ip in [
                        ip.to_ipv6_mapped(),
                        Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                        Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                    ] {
                        assert_eq!(is_public(ip.into()), expected, "{block}: {ip}");
                    }
                    // IPv4-compatible (withdrawn) and Teredo addresses are not public, regardless of the address
                    // inside.
                    assert!(!is_public(ip.to_ipv6_compatible().into()), "{ip}");
                    let teredo = Ipv6Addr::new(0x2001, 0, high, low, 0, 0, !high, !low);
                    assert!(!is_public(teredo.into()), "{teredo}");
                }
            }
        }
        check(
            false,
            &[
                "::",
                "::1",
                // This is a local-use NAT64 address.
                "64:ff9b:1::1.1.1.1",
                "64:ff9b::1:101:101",
                // These are the discard-only prefix and the dummy prefix.
                "100::1",
                "100:0:0:1::1",
                // This block is for segment routing.
                "5f00::1",
                // These are unique local, link-local, site-local and multicast addresses.
                "fc00::1",
                "fd00:ec2::254",
                "fe80::1",
                "fec0::1",
                "ff02::1",
                // This block is not allocated.
                "4000::1",
            ],
        );
        check(
            true,
            &[
                "1.1.1.1",
                "93.184.216.34",
                "::ffff:8.8.8.8",
                "64:ff9b::101:101",
                "2001:4860:4860::8888",
                "2002:808:808::1",
                "2606:4700::1111",
                "2620:4f:8000::1",
            ],
        );
    }
}
