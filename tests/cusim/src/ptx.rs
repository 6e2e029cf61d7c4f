//! What the driver must know of PTX text: the version, the target, the kernels and the sizes of their parameters.

#[derive(Debug, PartialEq)]
pub struct Ptx {
    /// 10 × major + minor of `.version`.
    pub version: i32,
    /// The number of `.target sm_…`.
    pub target: i32,
    pub kernels: Vec<Entry>,
}

#[derive(Debug, PartialEq)]
pub struct Entry {
    pub name: String,
    /// Bytes of each parameter.
    pub params: Vec<usize>,
}

impl Ptx {
    /// `None` for text that is no PTX.
    pub fn parse(text: &str) -> Option<Ptx> {
        let text: String =
            text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
        let version = word_after(&text, ".version")?;
        let (major, minor) = version.split_once('.')?;
        let target = word_after(&text, ".target")?.trim_end_matches(',').strip_prefix("sm_")?;
        let target = target.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let kernels = text.split(".entry").skip(1).map(Entry::parse).collect::<Option<_>>()?;
        Some(Ptx {
            version: major.parse::<i32>().ok()? * 10 + minor.parse::<i32>().ok()?,
            target: target.parse().ok()?,
            kernels,
        })
    }
}

impl Entry {
    /// From the text behind `.entry`.
    fn parse(text: &str) -> Option<Entry> {
        let body = text.find('{').unwrap_or(text.len());
        let (name, params) = match text.find('(').filter(|at| *at < body) {
            Some(open) => (&text[..open], &text[open + 1..text[open..].find(')')? + open]),
            None => (&text[..body], ""),
        };
        let params = params.split(',').map(str::trim).filter(|p| !p.is_empty());
        Some(Entry { name: name.trim().to_owned(), params: params.map(param).collect::<Option<_>>()? })
    }
}

/// The size of `.param .u64 name`, `.param .align 8 .b8 name[24]`, `.param .u64 .ptr .global .align 1 name`.
fn param(text: &str) -> Option<usize> {
    let element = text.split_whitespace().find_map(|word| {
        let bits: usize = word.strip_prefix(['.'])?.strip_prefix(['b', 'u', 's', 'f'])?.parse().ok()?;
        Some(bits / 8)
    })?;
    let count = match text.rsplit_once('[') {
        Some((_, count)) => count.trim_end_matches(']').trim().parse().ok()?,
        None => 1,
    };
    Some(element * count)
}

fn word_after<'a>(text: &'a str, directive: &str) -> Option<&'a str> {
    text.split_once(directive)?.1.split_whitespace().next()
}

/// The newest PTX (10 × major + minor) that a driver of this CUDA version (1000 × major + 10 × minor) takes.
pub fn newest(driver: i32) -> i32 {
    match (driver / 1000, driver % 1000 / 10) {
        (..=11, minor) => 70 + minor.min(8),
        (12, minor) => 80 + minor.min(8),
        (_, minor) => 90 + minor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_target_are_read() {
        let text = "// made by hand\n.version 8.0\n.target sm_75\n.address_size 64\n\
            .visible .entry one(\n .param .u64 one_param_0,\n .param .align 8 .b8 one_param_1[24],\n\
            .param .u64 .ptr .global .align 1 p, .param .f32 x, .param .u16 y, .param .u8 z\n)\n{ ret; }\n\
            .entry two()\n.maxntid 256, 1, 1\n{ ret; }\n.visible .entry three { ret; }";
        let ptx = Ptx::parse(text).unwrap();
        assert_eq!((ptx.version, ptx.target), (80, 75));
        let params: Vec<_> = ptx.kernels.iter().map(|k| (k.name.as_str(), k.params.clone())).collect();
        assert_eq!(params, [("one", vec![8, 24, 8, 4, 2, 1]), ("two", vec![]), ("three", vec![])]);
        assert_eq!(Ptx::parse("hello"), None);
        assert_eq!(Ptx::parse(".version 8.7\n.target sm_90a, debug").unwrap().target, 90);
    }
}
