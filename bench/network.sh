#!/usr/bin/env bash
# Runs ranks that reach each other over TCP alone, at a rate that is given, as if each had a machine of its own: every
# rank is in a network namespace, and all are on one switch. For root, with iproute2 and Open MPI; it leaves nothing.
#
# usage: network.sh RATE RANKS PROGRAM [ARGUMENT...]      RATE: of each rank, both ways, as tc takes it: 1gbit; or none
set -euo pipefail
if [[ -z ${ATTN_IN_NETWORK:-} ]]; then
  command -v tc mpirun > /dev/null && unshare --net --mount true 2> /dev/null ||
    { echo "network.sh needs tc, mpirun and the right to make network namespaces" >&2; exit 77; }
  exec env ATTN_IN_NETWORK=1 unshare --net --mount "$0" "$@"
fi
rate=$1 ranks=$2
shift 2

trap 'echo "network.sh cannot make such a network here" >&2; exit 77' ERR
mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
ip link add switch type bridge
ip addr add 10.7.0.254/24 dev switch
ip link set switch up
limit() { [[ $rate == none ]] || tc "$@" root tbf rate "$rate" burst 256kb latency 100ms; }
hosts=
for ((rank = 0; rank < ranks; ++rank)); do
  node=node$rank address=10.7.0.$((rank + 1))
  ip netns add "$node"
  ip link add "port$rank" type veth peer name wire netns "$node"
  ip link set "port$rank" master switch up
  ip -n "$node" addr add "$address/24" dev wire
  ip -n "$node" link set wire up
  ip -n "$node" link set lo up
  limit qdisc add dev "port$rank"
  limit -n "$node" qdisc add dev wire
  hosts+=${hosts:+,}$address:1
done

# mpirun starts a program on another machine with ssh; here that is a namespace, with a name of its own.
cat > /run/enter << 'ENTER'
#!/usr/bin/env bash
node=node$((${1##*.} - 1))
shift
exec ip netns exec "$node" unshare --uts bash -c "hostname $node; $*"
ENTER
chmod +x /run/enter
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ranks_of_network=(mpirun --mca plm_rsh_agent /run/enter --mca plm_rsh_no_tree_spawn 1 --mca btl tcp,self \
  --mca btl_tcp_if_include 10.7.0.0/24 --mca oob_tcp_if_include 10.7.0.0/24 --host "$hosts" --bind-to none \
  -n "$ranks")
"${ranks_of_network[@]}" true
trap - ERR
exec "${ranks_of_network[@]}" "$@"
