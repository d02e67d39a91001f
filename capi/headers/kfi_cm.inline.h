/**
 * fi_connect. Without an address it is that of the info that the endpoint was
 * opened with.
 */
static inline int
kfi_connect(struct fid_ep *ep, const void *addr, const void *param,
	size_t paramlen)
{
	if (!addr)
		addr = kfi_note_of(&ep->fid).dest_addr;
	return addr ? fi_connect(ep, addr, param, paramlen) : -FI_EINVAL;
}
