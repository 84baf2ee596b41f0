//! The EndpointSlices of one Service, packed into one allocation.
//!
//! A cluster has slices of every Service, and few of its Services may be on the allowlist. Only labels can select
//! slices, and a Service's labels are copied to its slices late, so all are watched. As plain values a slice takes 7
//! allocations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::kubernetes::objects::model::{Endpoint, Slice, SlicePort, State, Unusable};

/// Slices by name, in the order of their names. The name of their Service is not kept.
#[derive(Debug, Default)]
pub(super) struct Slices(Box<[u8]>);

impl Slices {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.packed_slices().map(|slice| slice.name)
    }

    /// The slices with their names. `service`: the name of their Service.
    pub(super) fn unpack(&self, service: &str) -> impl Iterator<Item = (Box<str>, Slice)> {
        self.packed_slices().map(move |PackedSlice { name, body }| {
            let slice = Unpacker(body).slice();
            let slice = Slice {
                service: service.into(),
                ..slice.unwrap_or_default()
            };
            (name.into(), slice)
        })
    }

    /// Adds a slice, or replaces the one of that name. `false` if nothing changes.
    pub(super) fn put(&mut self, name: &str, slice: &Slice) -> bool {
        let body = packed(slice);
        let new = PackedSlice { name, body: &body };
        if self.packed_slices().any(|slice| slice == new) {
            return false;
        }
        let others = || self.packed_slices().filter(|slice| slice.name != name);
        let before = others().take_while(|slice| slice.name < name);
        let behind = others().skip_while(|slice| slice.name < name);
        // Sorted, so that the order of events does not matter.
        self.0 = concatenated(before.chain([new]).chain(behind));
        true
    }

    /// Removes the slice of that name. `false` if there is none.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let is_there = self.names().any(|known| known == name);
        if is_there {
            self.0 = concatenated(self.packed_slices().filter(|slice| slice.name != name));
        }
        is_there
    }

    fn packed_slices(&self) -> impl Iterator<Item = PackedSlice<'_>> {
        let mut rest = Unpacker(&self.0);
        std::iter::from_fn(move || {
            let (name, body) = (rest.text()?, rest.bytes()?);
            Some(PackedSlice { name, body })
        })
    }
}

/// One packed slice.
#[derive(PartialEq)]
struct PackedSlice<'a> {
    name: &'a str,
    body: &'a [u8],
}

fn concatenated<'a>(slices: impl Iterator<Item = PackedSlice<'a>>) -> Box<[u8]> {
    let mut packed = Vec::new();
    for PackedSlice { name, body } in slices {
        put_bytes(&mut packed, name.as_bytes());
        put_bytes(&mut packed, body);
    }
    packed.into()
}

fn packed(slice: &Slice) -> Vec<u8> {
    let Slice {
        service: _,
        ports,
        endpoints,
        unusable,
    } = slice;
    let mut packed = Vec::new();
    put_number(&mut packed, ports.len());
    for SlicePort { name, number } in ports {
        put_bytes(&mut packed, name.as_bytes());
        packed.extend(number.to_le_bytes());
    }
    put_number(&mut packed, endpoints.len());
    for Endpoint { address, state, node } in endpoints {
        packed.push(match state {
            State::Ready => 0,
            State::Terminating => 1,
            State::NotReady => 2,
        });
        match address {
            IpAddr::V4(address) => put_bytes(&mut packed, &address.octets()),
            IpAddr::V6(address) => put_bytes(&mut packed, &address.octets()),
        }
        put_bytes(&mut packed, node.as_bytes());
    }
    if let Some(unusable) = unusable {
        let Unusable {
            address_type,
            address,
            port_numbers,
            protocols,
        } = &**unusable;
        packed.extend([u8::from(*address_type), u8::from(*address)]);
        for names in [port_numbers, protocols] {
            put_number(&mut packed, names.len());
            names.iter().for_each(|name| put_bytes(&mut packed, name.as_bytes()));
        }
    }
    packed
}

fn put_bytes(packed: &mut Vec<u8>, bytes: &[u8]) {
    put_number(packed, bytes.len());
    packed.extend(bytes);
}

/// Seven bits a byte, the lowest first (LEB128): lengths are short.
fn put_number(packed: &mut Vec<u8>, mut number: usize) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            packed.push(low);
            return;
        }
        packed.push(low | 0x80);
    }
}

/// The rest of packed bytes. Methods return `None` at the end and for malformed bytes.
struct Unpacker<'a>(&'a [u8]);

impl<'a> Unpacker<'a> {
    fn slice(mut self) -> Option<Slice> {
        let ports = (0..self.number()?).map(|_| {
            let name = self.text()?.into();
            let number = u16::from_le_bytes([self.byte()?, self.byte()?]);
            Some(SlicePort { name, number })
        });
        let ports = ports.collect::<Option<_>>()?;
        let endpoints = (0..self.number()?).map(|_| {
            let state = match self.byte()? {
                0 => State::Ready,
                1 => State::Terminating,
                _ => State::NotReady,
            };
            let (address, node) = (self.address()?, self.text()?.into());
            Some(Endpoint { address, state, node })
        });
        let endpoints = endpoints.collect::<Option<_>>()?;
        Some(Slice {
            service: Box::default(),
            ports,
            endpoints,
            // Absent at the end of the bytes: `None`.
            unusable: self.unusable(),
        })
    }

    fn address(&mut self) -> Option<IpAddr> {
        let bytes = self.bytes()?;
        let v4 = || <[u8; 4]>::try_from(bytes).map(|octets| Ipv4Addr::from(octets).into());
        let v6 = || <[u8; 16]>::try_from(bytes).map(|octets| Ipv6Addr::from(octets).into());
        v4().or_else(|_| v6()).ok()
    }

    fn unusable(&mut self) -> Option<Box<Unusable>> {
        let (address_type, address) = (self.byte()? == 1, self.byte()? == 1);
        Some(Box::new(Unusable {
            address_type,
            address,
            port_numbers: self.texts()?,
            protocols: self.texts()?,
        }))
    }

    fn texts(&mut self) -> Option<Vec<Box<str>>> {
        (0..self.number()?).map(|_| self.text().map(Box::from)).collect()
    }

    fn text(&mut self) -> Option<&'a str> {
        self.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<usize> {
        let mut number = 0;
        for shift in (0..usize::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn texts() -> impl Strategy<Value = Box<str>> {
        "[a-z\u{e9}]{0,3}|[a-z]{120,300}".prop_map(Into::into)
    }

    fn slices() -> impl Strategy<Value = Slice> {
        let ports = prop::collection::vec((texts(), any::<u16>()), 0..3).prop_map(|ports| {
            ports
                .into_iter()
                .map(|(name, number)| SlicePort { name, number })
                .collect()
        });
        let state = prop::sample::select(vec![State::Ready, State::Terminating, State::NotReady]);
        let endpoints = prop::collection::vec((any::<IpAddr>(), state, texts()), 0..200).prop_map(|all| {
            all.into_iter()
                .map(|(address, state, node)| Endpoint { address, state, node })
                .collect()
        });
        let names = || prop::collection::vec(texts(), 0..3);
        let unusable = (any::<bool>(), any::<bool>(), names(), names()).prop_map(
            |(address_type, address, port_numbers, protocols)| {
                Box::new(Unusable {
                    address_type,
                    address,
                    port_numbers,
                    protocols,
                })
            },
        );
        (ports, endpoints, prop::option::of(unusable)).prop_map(|(ports, endpoints, unusable)| Slice {
            service: "svc".into(),
            ports,
            endpoints,
            unusable,
        })
    }

    proptest! {
        #[test]
        fn packed_slices_are_those_that_were_put(
            history in prop::collection::vec(("[a-d]{1,2}", prop::option::of(slices())), 0..12)
        ) {
            let (mut packed, mut plain) = (Slices::default(), BTreeMap::<Box<str>, Slice>::new());
            for (name, slice) in history {
                match slice {
                    Some(slice) => {
                        let is_new = plain.insert(Box::from(&*name), slice.clone()).as_ref() != Some(&slice);
                        prop_assert_eq!(packed.put(&name, &slice), is_new);
                    }
                    None => prop_assert_eq!(packed.remove(&name), plain.remove(&*name).is_some()),
                }
                prop_assert_eq!(packed.is_empty(), plain.is_empty());
            }
            prop_assert!(packed.names().eq(plain.keys().map(AsRef::<str>::as_ref)));
            prop_assert!(packed.unpack("svc").eq(plain));
        }
    }
}
