// Detects addresses on this computer or its network. Services there may trust every request from this computer.

/** Suffixes of host names outside the public internet. */
const LOCAL_NAMES = /(^|\.)(localhost|local|internal|lan|home|corp|intranet|home\.arpa)$/;

/** Returns whether a URL points to this computer or a private network. A public name that resolves to such an address is not detected. */
export function isLocal(address: string): boolean {
  if (!URL.canParse(address)) return false;
  // The URL parser normalizes every form of an IPv4 address (decimal, hexadecimal, short) to four numbers.
  const host = new URL(address).hostname.replace(/\.$/, "").toLowerCase();
  if (!host) return false;
  if (host.startsWith("[")) return !isPublic6(groups(host.slice(1, -1)));
  const v4 = /^(\d+)\.(\d+)\.(\d+)\.(\d+)$/.exec(host);
  if (v4) return !isPublic4(v4.slice(1).map(Number));
  // A name without a dot is a local name.
  return !host.includes(".") || LOCAL_NAMES.test(host);
}

function isPublic4([a, b, c]: number[]): boolean {
  return !(
    a === 0 ||
    a === 10 ||
    a === 127 ||
    a! >= 224 ||
    (a === 100 && b! >= 64 && b! < 128) ||
    (a === 169 && b === 254) ||
    (a === 172 && b! >= 16 && b! < 32) ||
    (a === 192 && b === 168) ||
    (a === 192 && b === 0 && (c === 0 || c === 2)) ||
    (a === 198 && (b === 18 || b === 19)) ||
    (a === 198 && b === 51 && c === 100) ||
    (a === 203 && b === 0 && c === 113)
  );
}

/** Returns the eight groups of an IPv6 address normalized by the URL parser. */
function groups(text: string): number[] {
  const [head, tail] = text.split("::").map((part) => (part ? part.split(":").map((group) => parseInt(group, 16)) : []));
  if (!tail) return head!;
  return [...head!, ...new Array<number>(8 - head!.length - tail.length).fill(0), ...tail];
}

function isPublic6(all: number[]): boolean {
  const carried = (high: number, low: number) => isPublic4([high >> 8, high & 255, low >> 8, low & 255]);
  const zeros = (from: number, to: number) => all.slice(from, to).every((group) => group === 0);
  // Mapped, NAT64 and 6to4 addresses count as the IPv4 address that they contain.
  if (zeros(0, 5) && all[5] === 0xffff) return carried(all[6]!, all[7]!);
  if (all[0] === 0x64 && all[1] === 0xff9b && zeros(2, 6)) return carried(all[6]!, all[7]!);
  if (all[0] === 0x2002) return carried(all[1]!, all[2]!);
  // Global unicast.
  return (all[0]! & 0xe000) === 0x2000;
}
