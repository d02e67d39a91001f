/* A tag of format FI_TAG_MPI: the payload's kind above 32 bits of MPI tag. */
static inline uint64_t fi_tag_mpi(int tag, uint8_t payload_id)
{
	return ((uint64_t) payload_id << 32) | (uint32_t) tag;
}
