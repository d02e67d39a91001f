//! Combinations of providers: the value of FI_LNX_PROV_LINKS.
//!
//! `|` separates links, `+` separates the providers of a link. After a provider's name there may be
//! a `:` and the names of its domains, separated by commas.

/// Most links, and most providers of a link.
const MOST_LINKS: usize = 64;
const MOST_PROVIDERS: usize = 16;

/// A provider of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CoreSpec {
    /// Provider's name, followed by `;` and the name of a utility provider, if any.
    pub(crate) provider: String,
    /// Names of the domains; all available ones if none is named.
    pub(crate) domains: Vec<String>,
}

/// Providers forming one endpoint.
pub(crate) type LinkSpec = Vec<CoreSpec>;

/// Returns true if these characters may be a name.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn core(text: &str) -> Result<CoreSpec, String> {
    let (provider, domains) = match text.split_once(':') {
        None => (text, Vec::new()),
        Some((provider, domains)) => (provider, domains.split(',').map(str::trim).collect()),
    };
    let provider = provider.trim();
    if !is_name(provider) {
        return Err(format!("\"{text}\" has no name of a provider"));
    }
    if provider.split(';').any(|name| name.eq_ignore_ascii_case("lnx")) {
        return Err("lnx cannot be a part of itself".to_owned());
    }
    if let Some(bad) = domains.iter().find(|domain| !is_name(domain)) {
        return Err(format!("\"{bad}\" is no name of a domain of {provider}"));
    }
    let domains = domains.into_iter().map(str::to_owned).collect();
    Ok(CoreSpec { provider: provider.to_owned(), domains })
}

fn link(text: &str) -> Result<LinkSpec, String> {
    let cores = text.split('+').map(core).collect::<Result<LinkSpec, String>>()?;
    if cores.len() > MOST_PROVIDERS {
        return Err(format!("a link has at most {MOST_PROVIDERS} providers"));
    }
    for (index, core) in cores.iter().enumerate() {
        if cores[..index].iter().any(|other| other.provider == core.provider) {
            return Err(format!(
                "{} is twice in a link: several domains of one provider are {}:first,second",
                core.provider, core.provider
            ));
        }
    }
    Ok(cores)
}

/// Parses the links named by a text; the error describes a defect of the text.
pub(crate) fn links(text: &str) -> Result<Vec<LinkSpec>, String> {
    let links = text.split('|').map(link).collect::<Result<Vec<_>, String>>()?;
    if links.len() > MOST_LINKS {
        return Err(format!("there are at most {MOST_LINKS} links"));
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(provider: &str, domains: &[&str]) -> CoreSpec {
        let domains = domains.iter().map(|name| (*name).to_owned()).collect();
        CoreSpec { provider: provider.to_owned(), domains }
    }

    #[test]
    fn links_are_read_with_their_providers_and_domains() {
        assert_eq!(links("tcp"), Ok(vec![vec![core("tcp", &[])]]));
        assert_eq!(links("shm+tcp"), Ok(vec![vec![core("shm", &[]), core("tcp", &[])]]));
        let several = "shm + verbs;ofi_rxm:mlx5_0-rdm,mlx5_1 | shm+cxi:cxi1";
        assert_eq!(
            links(several),
            Ok(vec![
                vec![core("shm", &[]), core("verbs;ofi_rxm", &["mlx5_0-rdm", "mlx5_1"])],
                vec![core("shm", &[]), core("cxi", &["cxi1"])],
            ])
        );
        // Everything after the first colon belongs to the domain.
        assert_eq!(links("tcp:a:b"), Ok(vec![vec![core("tcp", &["a:b"])]]));
    }

    #[test]
    fn malformed_link_lists_are_refused_with_a_reason() {
        let why = |text: &str| links(text).unwrap_err();
        for (text, part) in [
            ("", "no name of a provider"),
            ("shm+", "no name of a provider"),
            ("+tcp", "no name of a provider"),
            ("shm||tcp", "no name of a provider"),
            (":eth0", "no name of a provider"),
            ("two words", "no name of a provider"),
            ("shm+lnx", "itself"),
            ("LNX:x", "itself"),
            ("tcp:", "no name of a domain of tcp"),
            ("tcp:eth0,,eth1", "no name of a domain of tcp"),
            ("tcp:eth0+tcp:eth1", "twice"),
            ("tcp\u{7f}", "no name of a provider"),
        ] {
            assert!(why(text).contains(part), "{text}: {}", why(text));
        }
        let many = vec!["tcp"; MOST_LINKS + 1].join("|");
        assert!(why(&many).contains("at most 64 links"));
        let long: Vec<_> = (0..=MOST_PROVIDERS).map(|number| format!("p{number}")).collect();
        assert!(why(&long.join("+")).contains("at most 16 providers"));
    }
}
