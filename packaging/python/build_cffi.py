"""The C interface of the extension module `libfabric._cffi`.

Constants and enums are read from the installed headers, and the compiler checks every declared
member and function against them, so a declaration that differs from the headers ends the build.
"""
import os
import re
import subprocess
from pathlib import Path

from cffi import FFI

HEADERS = ["fi_errno", "fabric", "fi_eq", "fi_domain", "fi_endpoint", "fi_cm", "fi_rma", "fi_tagged"]

STRUCTS = """
typedef uint64_t fi_addr_t;
struct fid { size_t fclass; void *context; ...; };
struct fid_fabric { struct fid fid; ...; };
struct fid_domain { struct fid fid; ...; };
struct fid_av { struct fid fid; ...; };
struct fid_cq { struct fid fid; ...; };
struct fid_ep { struct fid fid; ...; };
struct fid_mr { struct fid fid; ...; };
struct fi_context2 { ...; };

struct fi_tx_attr {
    uint64_t caps; uint64_t mode; uint64_t op_flags; uint64_t msg_order; uint64_t comp_order;
    size_t inject_size; size_t size; size_t iov_limit; size_t rma_iov_limit; uint32_t tclass; ...;
};
struct fi_rx_attr {
    uint64_t caps; uint64_t mode; uint64_t op_flags; uint64_t msg_order; uint64_t comp_order;
    size_t size; size_t iov_limit; ...;
};
struct fi_ep_attr {
    enum fi_ep_type type; uint32_t protocol; uint32_t protocol_version; size_t max_msg_size;
    size_t msg_prefix_size; uint64_t mem_tag_format; size_t tx_ctx_cnt; size_t rx_ctx_cnt; ...;
};
struct fi_domain_attr {
    char *name; enum fi_threading threading; enum fi_progress control_progress;
    enum fi_progress data_progress; enum fi_resource_mgmt resource_mgmt; enum fi_av_type av_type;
    int mr_mode; size_t mr_key_size; size_t cq_data_size; size_t cq_cnt; size_t ep_cnt; ...;
};
struct fi_fabric_attr { char *name; char *prov_name; uint32_t prov_version; uint32_t api_version; ...; };
struct fi_info {
    struct fi_info *next; uint64_t caps; uint64_t mode; uint32_t addr_format;
    size_t src_addrlen; size_t dest_addrlen; void *src_addr; void *dest_addr;
    struct fi_tx_attr *tx_attr; struct fi_rx_attr *rx_attr; struct fi_ep_attr *ep_attr;
    struct fi_domain_attr *domain_attr; struct fi_fabric_attr *fabric_attr; ...;
};
struct fi_cq_attr {
    size_t size; uint64_t flags; enum fi_cq_format format; enum fi_wait_obj wait_obj;
    int signaling_vector; enum fi_cq_wait_cond wait_cond; ...;
};
struct fi_cq_tagged_entry { void *op_context; uint64_t flags; size_t len; void *buf; uint64_t data; uint64_t tag; };
struct fi_cq_err_entry {
    void *op_context; uint64_t flags; size_t len; void *buf; uint64_t data; uint64_t tag; size_t olen;
    int err; int prov_errno; void *err_data; size_t err_data_size; fi_addr_t src_addr; ...;
};
struct fi_av_attr {
    enum fi_av_type type; int rx_ctx_bits; size_t count; size_t ep_per_node; const char *name;
    void *map_addr; uint64_t flags; ...;
};
"""

FUNCTIONS = """
char *strdup(const char *);
uint32_t fi_version(void);
const char *fi_strerror(int);
char *fi_tostr_r(char *, size_t, const void *, enum fi_type);
struct fi_info *fi_dupinfo(const struct fi_info *);
struct fi_info *fi_allocinfo(void);
void fi_freeinfo(struct fi_info *);
int fi_getinfo(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
int fi_fabric(struct fi_fabric_attr *, struct fid_fabric **, void *);
int fi_domain(struct fid_fabric *, struct fi_info *, struct fid_domain **, void *);
int fi_close(struct fid *);
int fi_control(struct fid *, int, void *);
int fi_trywait(struct fid_fabric *, struct fid **, int);

int fi_cq_open(struct fid_domain *, struct fi_cq_attr *, struct fid_cq **, void *);
ssize_t fi_cq_readfrom(struct fid_cq *, void *, size_t, fi_addr_t *);
ssize_t fi_cq_readerr(struct fid_cq *, struct fi_cq_err_entry *, uint64_t);
const char *fi_cq_strerror(struct fid_cq *, int, const void *, char *, size_t);

int fi_av_open(struct fid_domain *, struct fi_av_attr *, struct fid_av **, void *);
int fi_av_insert(struct fid_av *, const void *, size_t, fi_addr_t *, uint64_t, void *);
int fi_av_insertsvc(struct fid_av *, const char *, const char *, fi_addr_t *, uint64_t, void *);
int fi_av_lookup(struct fid_av *, fi_addr_t, void *, size_t *);
int fi_av_remove(struct fid_av *, fi_addr_t *, size_t, uint64_t);
const char *fi_av_straddr(struct fid_av *, const void *, char *, size_t *);

int fi_mr_reg(struct fid_domain *, const void *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, struct fid_mr **, void *);
void *fi_mr_desc(struct fid_mr *);
uint64_t fi_mr_key(struct fid_mr *);

int fi_endpoint(struct fid_domain *, struct fi_info *, struct fid_ep **, void *);
int fi_ep_bind(struct fid_ep *, struct fid *, uint64_t);
int fi_enable(struct fid_ep *);
int fi_cancel(struct fid *, void *);
int fi_getname(struct fid *, void *, size_t *);
ssize_t fi_send(struct fid_ep *, const void *, size_t, void *, fi_addr_t, void *);
ssize_t fi_senddata(struct fid_ep *, const void *, size_t, void *, uint64_t, fi_addr_t, void *);
ssize_t fi_recv(struct fid_ep *, void *, size_t, void *, fi_addr_t, void *);
ssize_t fi_tsend(struct fid_ep *, const void *, size_t, void *, fi_addr_t, uint64_t, void *);
ssize_t fi_tsenddata(struct fid_ep *, const void *, size_t, void *, uint64_t, fi_addr_t, uint64_t, void *);
ssize_t fi_trecv(struct fid_ep *, void *, size_t, void *, fi_addr_t, uint64_t, uint64_t, void *);
ssize_t fi_read(struct fid_ep *, void *, size_t, void *, fi_addr_t, uint64_t, uint64_t, void *);
ssize_t fi_write(struct fid_ep *, const void *, size_t, void *, fi_addr_t, uint64_t, uint64_t, void *);
"""


def installation():
    """Returns the folders of the headers and of the library."""
    prefix = os.environ.get("OFI_PREFIX")
    if prefix:
        return Path(prefix, "include"), Path(prefix, "lib")
    folders = []
    for variable in ("includedir", "libdir"):
        command = ["pkg-config", f"--variable={variable}", "libfabric"]
        folders.append(Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()))
    return folders[0], folders[1]


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def enums_and_constants(include):
    """Declares the enums and the integer constants of the headers, for the compiler to complete."""
    text = without_comments("".join(Path(include, "rdma", f"{name}.h").read_text() for name in HEADERS))
    seen, declarations = set(), []
    for name, body in re.findall(r"^enum (\w*) ?\{(.*?)^\}", text, flags=re.M | re.S):
        members = []
        for member in re.findall(r"^\s*(FI_\w+)\s*(?:=[^,\n]*)?,?\s*$", body, flags=re.M):
            if member not in seen:
                seen.add(member)
                members.append(member)
        if name and members:
            declarations.append(f"enum {name} {{ {', '.join(members)}, ... }};")
        else:
            declarations.extend(f"#define {member} ..." for member in members)
    for name, value in re.findall(r"^#define (FI_\w+)[ \t]+(\S.*)$", text, flags=re.M):
        if name not in seen and re.fullmatch(r"[-\w\s()<|+]+", value) and "__attribute__" not in value:
            seen.add(name)
            declarations.append(f"#define {name} ...")
    return "\n".join(declarations)


include, library = installation()
builder = FFI()
builder.cdef(enums_and_constants(include) + STRUCTS + FUNCTIONS)
builder.set_source(
    "libfabric._cffi",
    "#include <stdlib.h>\n#include <string.h>\n" + "".join(f"#include <rdma/{name}.h>\n" for name in HEADERS),
    include_dirs=[str(include)],
    library_dirs=[str(library)],
    extra_compile_args=["-Werror=incompatible-pointer-types", "-Werror=int-conversion", "-Wno-deprecated-declarations"],
    extra_link_args=["-l:libfabric.so.1", "-Wl,-rpath,$ORIGIN/lib", "-Wl,--enable-new-dtags"],
)
