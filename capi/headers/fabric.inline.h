/* A traffic class that carries a DSCP value, fi_endpoint(3). */
static inline uint32_t fi_tc_dscp_set(uint8_t dscp)
{
	return FI_TC_DSCP | (uint32_t) dscp;
}

static inline uint8_t fi_tc_dscp_get(uint32_t tclass)
{
	return (tclass & FI_TC_DSCP) ? (uint8_t) (tclass & 0xFF) : 0;
}

static inline struct fi_info *fi_allocinfo(void)
{
	return fi_dupinfo(NULL);
}

static inline int
fi_alias(struct fid *fid, struct fid **alias_fid, uint64_t flags)
{
	struct fi_alias alias;

	alias.fid = alias_fid;
	alias.flags = flags;
	return fi_control(fid, FI_ALIAS, &alias);
}

static inline int fi_get_val(struct fid *fid, int name, void *val)
{
	struct fi_fid_var var;

	var.name = name;
	var.val = val;
	return fi_control(fid, FI_GET_VAL, &var);
}

static inline int fi_set_val(struct fid *fid, int name, void *val)
{
	struct fi_fid_var var;

	var.name = name;
	var.val = val;
	return fi_control(fid, FI_SET_VAL, &var);
}
